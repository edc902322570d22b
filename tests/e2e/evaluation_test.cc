// The evaluation after the last round: facilities with validation sets measure the last global
// model in a round of its own, and a failed evaluation does not fail the run.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "e2e/project.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

using test::Project;
using Lines = std::vector<std::string>;

// One round; alba has a validation set, brno has none.
void set_up(Project& project, const std::string& policy = "") {
  project.set_rounds(1);
  project.set_validation("alba", "it");
  project.set_policy("{on_missing: wait, poll_interval: 20ms" + policy + "}");
  project.write_config();
}

const Lines kOnceEach = {"alba 1 1", "alba 2 1", "brno 1 1"};  // round 2 is the evaluation

TEST(Evaluation, EvaluatesTheLastModelOnce) {
  Project project;
  set_up(project);
  project.set_rounds(2);
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(project.trainings(),
            (Lines{"alba 1 1", "alba 2 1", "alba 3 1", "brno 1 1", "brno 2 1"}));
  EXPECT_NE(result.out.find("global model: loss (perplexity)\n"
                            "  round             alba it\n"
                            "      0     5.5000 (244.69)\n"
                            "      1     5.0000 (148.41)\n"
                            "      2      4.5000 (90.02)\n"),
            std::string::npos)
      << result.out;
  const Json status =
      parse_json(project.xffl({"status", "-p", project.path().string(), "--json"}).out, "status");
  EXPECT_EQ(status["state"], "completed");
  EXPECT_EQ(status["rounds_detail"].size(), 2u);
  EXPECT_EQ(status["evaluation"]["facilities"]["alba"]["state"], "accepted");
  ASSERT_EQ(status["validation"].size(), 3u);
  EXPECT_EQ(status["validation"][2]["round"], 2);
  EXPECT_EQ(status["validation"][2]["loss"], 4.5);
  EXPECT_EQ(std::filesystem::read_symlink(project.run_folder() / "CURRENT"), "r0002/global");
  ASSERT_EQ(project.run().exit_code, 0);
  EXPECT_EQ(project.trainings().size(), 5u) << "a completed run measures nothing";
}

TEST(Evaluation, RunsOnceWhenKilledAtAnyRecord) {
  Project project;
  set_up(project);
  ASSERT_EQ(project.run().exit_code, 0);
  const std::string expected = project.current_sha256();
  int published = 0, records = 0;
  for (const history::StoredEvent& event : project.events()) {
    ++records;
    if (event.kind == "published") published = records;
  }
  ASSERT_GE(records - published, 6)
      << "planned, opened, pushed, intended, submitted, accepted, ...";
  for (const char* side : {"before", "after"})
    for (int record = published; record <= records; ++record) {
      project.forget_runs();
      const std::string failpoint = std::string("journal:") + side + ":" + std::to_string(record);
      ASSERT_EQ(project.run({{"XFFL_FAILPOINT", failpoint}}).exit_code, 128 + SIGKILL) << failpoint;
      const ProcessResult resumed = project.run();
      ASSERT_EQ(resumed.exit_code, 0) << failpoint << resumed.err;
      EXPECT_EQ(project.current_sha256(), expected) << failpoint;
      EXPECT_EQ(project.trainings(), kOnceEach) << failpoint;
      EXPECT_EQ(project.count_events("update_accepted"), 3) << failpoint;
      EXPECT_EQ(project.count_events("run_completed"), 1) << failpoint;
    }
}

// alba's trainer supports no evaluations; the run completes even with on_missing: fail.
TEST(Evaluation, AFailureDoesNotFailTheRun) {
  for (const std::string on_missing : {"wait", "fail", "skip"}) {
    Project project;
    project.set_fault("alba", "crash@2!");
    set_up(project);
    project.set_policy("{on_missing: " + on_missing + ", poll_interval: 20ms}");
    project.write_config();
    const ProcessResult result = project.run();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("1 of 1 rounds published"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("      0     5.5000 (244.69)\n      1                   -\n"),
              std::string::npos)
        << result.out;
    EXPECT_NE(result.err.find("the last global model was not measured here"), std::string::npos)
        << result.err;
    EXPECT_TRUE(project.history().completed);
    const std::string status = project.xffl({"status", "-p", project.path().string()}).out;
    EXPECT_NE(status.find("completed, 1 of 1 rounds"), std::string::npos) << status;
    EXPECT_NE(status.find("alba: missing  (no attempt left"), std::string::npos) << status;
  }
}

TEST(Evaluation, AFailureDoesNotEndTheOthersEvaluations) {
  Project project;
  project.set_fault("alba", "crash@2!");
  set_up(project);
  project.set_validation("brno", "it");
  project.set_policy("{on_missing: fail, max_attempts: 2, poll_interval: 20ms}");
  project.set_hold();
  project.write_config();
  auto run = project.start_run();
  project.hold("brno", 2);
  project.release();  // all rounds but that one
  EXPECT_TRUE(project.await_events("attempt_failed", 2));
  std::this_thread::sleep_for(std::chrono::seconds(1));  // alba's part of the round ends
  project.release("brno", 2);
  EXPECT_EQ(run.finish(), 0);
  const Json status =
      parse_json(project.xffl({"status", "-p", project.path().string(), "--json"}).out, "status");
  EXPECT_EQ(status["evaluation"]["facilities"]["brno"]["state"], "accepted") << status.dump();
}

TEST(Evaluation, CanBeTurnedOffBeforeAndWhileItRuns) {
  Project project;
  set_up(project, ", evaluate_last: false");
  ASSERT_EQ(project.run().exit_code, 0);
  EXPECT_EQ(project.trainings(), (Lines{"alba 1 1", "brno 1 1"}));
  EXPECT_FALSE(project.history().rounds.contains(2));

  project.forget_runs();
  project.set_fault("alba", "hang@2!");
  set_up(project);
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 3));
  run.kill();
  const std::string job = project.jobs("alba").back();
  EXPECT_NE(project.xffl({"status", "-p", project.path().string()}).out.find("measuring"),
            std::string::npos);
  set_up(project, ", evaluate_last: false");
  const ProcessResult finished = project.run();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_TRUE(project.history().completed);
  EXPECT_TRUE(test::job_ends(job)) << "the evaluation's job still runs";
}

TEST(Evaluation, IsCancelledWithItsRun) {
  Project project;
  project.set_fault("alba", "hang@2!");
  set_up(project);
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 3));
  EXPECT_EQ(project.xffl({"cancel", "-p", project.path().string()}).exit_code, 0);
  EXPECT_EQ(run.finish(), exit_code(ErrorKind::kFailed));
  EXPECT_TRUE(test::job_ends(project.jobs("alba").back())) << "the evaluation's job still runs";
  EXPECT_EQ(project.history().done().rounds_published, 1);
}

}  // namespace
}  // namespace xffl
