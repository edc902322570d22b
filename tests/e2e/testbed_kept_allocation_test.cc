// Kept allocations on real facilities: one job trains every round with the model of an undisturbed
// run, and no fault makes a training run twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>

#include "e2e/testbed_project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::await;
using test::Facility;
using test::TestbedProject;

class TestbedKeptAllocation : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    project_ = std::make_unique<TestbedProject>();
    expected_ = test::local_sha256();
  }
  static void TearDownTestSuite() { project_.reset(); }

  void SetUp() override {
    if (!project_->up()) GTEST_SKIP() << project_->why_not();
    project_->forget_runs();
    ask("nodes: 2, time: 5m, warning: 1m, keep_allocation: 60s");
    project_->set_hold();
  }
  static TestbedProject& project() { return *project_; }
  static const Facility& facility(const std::string& name) { return project_->facility(name); }

  static void ask(const std::string& alba, const std::string& brno = "") {
    for (const char* name : {"alba", "brno"}) {
      const bool other = name[0] == 'b' && !brno.empty();
      project_->place(name, test::placement(facility(name), "", other ? brno : alba));
    }
  }
  /// Releases all trainings except the one of `held` in `round`.
  static test::StartedRun start(const std::string& held = "", int round = 0) {
    project_->write_config();
    if (!held.empty()) project_->hold(held, round);
    project_->release();
    return project_->start_run();
  }
  static void run_to_the_end() {
    auto run = start();
    EXPECT_EQ(run.finish(), 0);
  }
  static std::vector<std::string> jobs(const std::string& name) { return project_->jobs(name); }
  static bool same(const std::vector<std::string>& ids) {
    return ids.size() == 3 && ids[0] == ids[1] && ids[1] == ids[2];
  }
  static fs::path attempt(const std::string& name, int round) {
    std::error_code none;
    for (const auto& run :
         fs::directory_iterator(facility(name).folder / "scratch/work/test", none))
      return run.path() / name / ("r000" + std::to_string(round)) / "a1";
    return {};
  }
  static bool await_allocation(const std::string& name, int round, const std::string& state) {
    return await([&] { return fs::exists(attempt(name, round) / ("stay." + state)); });
  }

  static std::unique_ptr<TestbedProject> project_;
  static std::string expected_;
};

std::unique_ptr<TestbedProject> TestbedKeptAllocation::project_;
std::string TestbedKeptAllocation::expected_;

TEST_F(TestbedKeptAllocation, OneJobTrainsEveryRound) {
  run_to_the_end();
  project().expect_result(expected_);
  for (const char* name : {"alba", "brno"}) {
    EXPECT_TRUE(same(jobs(name))) << testing::PrintToString(jobs(name));
    EXPECT_FALSE(fs::exists(attempt(name, 3) / "stay.planned"));
    EXPECT_THAT(read_file(attempt(name, 3) / "job.out", 1 << 20),
                testing::HasSubstr("the trainer ended with 0"));
    // keep_rounds is 2: only the small files of the first round are left.
    EXPECT_TRUE(fs::exists(attempt(name, 1) / "job.out"));
    EXPECT_FALSE(fs::exists(attempt(name, 1) / "out"));
  }
}

// alba's kept allocation expires before brno has trained; brno's walltime is too short to keep one.
TEST_F(TestbedKeptAllocation, AnExpiredAllocationIsReplacedByANewJob) {
  ask("nodes: 2, time: 5m, warning: 1m, keep_allocation: 1s",
      "nodes: 2, time: 1m, warning: 50s, keep_allocation: 60s");
  auto run = start("brno", 1);
  ASSERT_TRUE(await_allocation("alba", 1, "closed"));
  EXPECT_TRUE(await([] { return project().jobs_left("alba").empty(); }));
  project().release("brno", 1);
  EXPECT_EQ(run.finish(), 0);
  project().expect_result(expected_);
  EXPECT_NE(jobs("alba")[0], jobs("alba")[1]);
  for (const std::string& later : {jobs("brno")[1], jobs("brno")[2]})
    EXPECT_NE(later, jobs("brno")[0]);
}

TEST_F(TestbedKeptAllocation, IsReleasedByPauseAndCancel) {
  auto run = start("brno", 1);
  project().hold("brno", 2);
  ASSERT_TRUE(await_allocation("alba", 1, "offered"));
  ASSERT_TRUE(project().await_events("update_accepted", 1));
  const std::string path = project().path().string();
  ASSERT_EQ(project().xffl({"pause", "alba", "-p", path}).exit_code, 0);
  ASSERT_TRUE(await_allocation("alba", 1, "closed"));
  ASSERT_EQ(project().xffl({"resume", "alba", "-p", path}).exit_code, 0);
  project().release("brno", 1);
  ASSERT_TRUE(await_allocation("alba", 2, "offered"));
  ASSERT_TRUE(project().await_events("update_accepted", 3));
  EXPECT_NE(jobs("alba").at(0), jobs("alba").at(1));
  EXPECT_EQ(jobs("brno").at(0), jobs("brno").at(1));
  EXPECT_EQ(project().xffl({"cancel", "-p", path}).exit_code, 0);
  EXPECT_EQ(run.finish(), exit_code(ErrorKind::kFailed));
  EXPECT_TRUE(fs::exists(attempt("alba", 2) / "stay.closed"));
  for (const char* name : {"alba", "brno"})
    EXPECT_TRUE(await([&] { return project().jobs_left(name).empty(); }));
}

// Slurm requeues brno's job during the second round's training, and alba's while it waits for that
// round.
TEST_F(TestbedKeptAllocation, RequeuedJobsContinueTheirRound) {
  auto run = start("brno", 2);
  ASSERT_TRUE(await_allocation("alba", 2, "offered"));
  ASSERT_TRUE(await([] {
    const auto started = project().started_trainings();
    return std::find(started.begin(), started.end(), "brno 2 1") != started.end();
  }));
  const std::string alba = jobs("alba").at(0), brno = jobs("brno").at(0);
  for (const auto& [name, job] : {std::pair{"alba", alba}, {"brno", brno}})
    ASSERT_EQ(facility(name).exec_on_login({"scontrol", "requeue", job}).exit_code, 0);
  facility("brno").start_requeued(brno, 2);
  ASSERT_TRUE(await([&] {
    return read_file(attempt("brno", 2) / "job.out", 1 << 20).find("starts again (restart 1)") !=
           std::string::npos;
  }));
  facility("alba").start_requeued(alba, 2);
  project().release("brno", 2);
  EXPECT_EQ(run.finish(), 0);
  project().expect_result(expected_, "",
                          {"alba 1 1", "alba 2 1", "alba 3 1", "brno 1 1", "brno 2 1", "brno 3 1"},
                          {"brno 2 1"});  // Slurm ended the training that had begun
  EXPECT_TRUE(same(jobs("brno"))) << testing::PrintToString(jobs("brno"));
}

// SIGKILL at a sample of the records, also between the use of a kept allocation and its record: the
// coordinator then finds the job by the claim. With XFFL_CAMPAIGN=1 at every record.
TEST_F(TestbedKeptAllocation, SurvivesKillsAtJournalRecords) {
  run_to_the_end();
  std::vector<std::string> failpoints;
  for (const history::StoredEvent& event : project().events()) {
    const std::string number = std::to_string(event.seq);
    if (std::getenv("XFFL_CAMPAIGN") != nullptr)
      failpoints.insert(failpoints.end(), {"journal:before:" + number, "journal:after:" + number});
    else if (event.round == 2 && event.facility == "alba" && event.kind == "submitted")
      failpoints.push_back("journal:before:" + number);
    else if (event.round == 2 && event.kind == "published")
      failpoints.push_back("journal:after:" + number);
  }
  project().forget_runs();
  for (const std::string& failpoint : failpoints) {
    project().write_config();
    project().release();
    ASSERT_EQ(project().run({{"XFFL_FAILPOINT", failpoint}}).exit_code, 128 + SIGKILL) << failpoint;
    const ProcessResult resumed = project().run();
    ASSERT_EQ(resumed.exit_code, 0) << failpoint << resumed.err;
    project().expect_result(expected_, failpoint);
    for (const char* name : {"alba", "brno"})
      EXPECT_TRUE(same(jobs(name))) << failpoint << " " << name;
    project().forget_runs();
  }
  std::cout << failpoints.size() << " kills at records\n";
  EXPECT_GE(failpoints.size(), 2u);
}

}  // namespace
}  // namespace xffl
