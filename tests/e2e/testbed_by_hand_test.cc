// Jobs that a user submits by hand, on a real Slurm: `xffl render F --stage`, then its line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/testbed_project.h"

namespace xffl {
namespace {

using test::local_sha256;
using test::TestbedProject;
using testing::ElementsAre;
using testing::HasSubstr;

class TestbedByHand : public testing::Test {
 protected:
  ProcessResult stage(const std::string& facility) const {
    return project_.xffl({"render", facility, "--stage", "-p", project_.path().string()});
  }
  // A user's shell at the facility.
  ProcessResult shell(const std::string& facility, const std::string& line) const {
    return project_.facility(facility).exec_as_user({"bash", "-c", line});
  }
  std::string staged(const std::string& facility) const {
    const ProcessResult result = stage(facility);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(std::ranges::count(result.out, '\n'), 1) << result.out;
    return result.out;
  }
  std::vector<std::string> adopted_jobs() const {
    std::vector<std::string> names;
    for (const history::StoredEvent& event : project_.events())
      if (event.kind == "submitted" && event.payload.find("\"adopted\":true") != std::string::npos)
        names.push_back(event.facility);
    return names;
  }

  TestbedProject project_;
};

// The job at alba runs before the coordinator starts, the job at brno waits in the queue, held by
// its user.
TEST_F(TestbedByHand, TheRunAdoptsJobsSubmittedByHand) {
  NEED_TESTBED(project_);
  const std::string alba = staged("alba");
  EXPECT_THAT(alba, testing::MatchesRegex("cd /scratch/work/.* && sbatch submit.sh\n"));
  EXPECT_EQ(staged("alba"), alba);
  EXPECT_EQ(project_.jobs_left("alba"), "");
  const ProcessResult submitted = shell("alba", alba);
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  EXPECT_THAT(submitted.out, HasSubstr("Submitted batch job"));
  const ProcessResult again = stage("alba");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, "");
  EXPECT_THAT(again.err, HasSubstr("of this attempt exists already"));

  std::string brno = staged("brno");
  brno.insert(brno.find("submit.sh"), "--hold ");
  ASSERT_EQ(shell("brno", brno).exit_code, 0);
  auto run = project_.start_run();
  ASSERT_TRUE(project_.await_events("submitted", 2));
  shell("brno", "scontrol release $(squeue --me -h -o %A)");
  EXPECT_EQ(run.finish(), 0);
  EXPECT_THAT(adopted_jobs(), testing::UnorderedElementsAre("alba", "brno"));
  project_.expect_result(local_sha256());
}

// A second job of an attempt, and a script that nobody submitted: the run submits it.
TEST_F(TestbedByHand, AnAttemptIsTrainedOnceHoweverOftenItIsSubmitted) {
  NEED_TESTBED(project_);
  const std::string alba = staged("alba");
  staged("brno");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(shell("alba", alba).exit_code, 0);
  const ProcessResult result = project_.run();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  project_.expect_result(local_sha256());
}

TEST_F(TestbedByHand, AMissingFolderIsNamed) {
  NEED_TESTBED(project_);
  const std::string alba = staged("alba");
  const std::string folder = alba.substr(3, alba.find(" && ") - 3);
  ASSERT_EQ(shell("alba", "cp " + folder + "/submit.sh ~/kept.sh && rm -r " + folder).exit_code, 0);
  const ProcessResult refused = shell("alba", alba);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr(folder + ": No such file or directory"));
  ASSERT_EQ(shell("alba", "sbatch ~/kept.sh").exit_code, 0);
  ASSERT_TRUE(
      test::await([&] { return shell("alba", "squeue --me -h -t all -o %T").out == "FAILED\n"; }));
  const ProcessResult result = project_.run();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the job's folder " + folder + " was removed"));
  EXPECT_EQ(project_.current_sha256(), local_sha256());
}

TEST_F(TestbedByHand, AFacilityThatCannotBeStagedIsRefused) {
  NEED_TESTBED(project_);
  project_.place("brno", {});
  project_.facility("alba").cut();
  const ProcessResult cut = stage("alba");
  EXPECT_EQ(cut.out, "");
  EXPECT_THAT(cut.err, HasSubstr("alba"));
  EXPECT_NE(cut.exit_code, 0);
  project_.facility("alba").heal();
  ASSERT_EQ(project_.xffl({"pause", "alba", "-p", project_.path().string()}).exit_code, 0);
  const ProcessResult paused = stage("alba");
  EXPECT_NE(paused.exit_code, 0);
  EXPECT_THAT(paused.err, HasSubstr("`xffl resume alba` ends the pause"));
  EXPECT_THAT(stage("genova").err, HasSubstr("genova"));
}

}  // namespace
}  // namespace xffl
