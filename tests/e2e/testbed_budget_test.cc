// Budgets of node-hours on real facilities.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"
#include "xffl/history/run_folder.h"

namespace xffl {
namespace {

using test::TestbedProject;
using testing::AllOf;
using testing::HasSubstr;

// Every job: 2 nodes, 5 minutes.
constexpr const char* kOneJobOfTwo = "{node_hours: 0.3, warn_at: 0.5}";
constexpr const char* kLessThanAJob = "{node_hours: 0.16}";

// The most jobs at once whose walltimes count.
int most_jobs(const TestbedProject& project) {
  std::set<std::string> open;
  size_t most = 0;
  for (const history::StoredEvent& event : project.events()) {
    if (event.kind == "submit_intended") open.insert(event.facility);
    if (event.kind == "update_accepted") open.erase(event.facility);
    most = std::max(most, open.size());
  }
  return static_cast<int>(most);
}

TEST(TestbedBudget, FacilitiesShareTheRunsBudget) {
  TestbedProject project;
  NEED_TESTBED(project);
  project.set_policy("{poll_interval: 300ms, budget: " + std::string(kOneJobOfTwo) + "}");
  project.write_config();
  const ProcessResult run = project.run();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  project.expect_result(test::local_sha256());
  EXPECT_EQ(most_jobs(project), 1);
  const int pauses = project.count_events("facility_paused");
  EXPECT_GE(pauses, 1);
  EXPECT_EQ(project.count_events("facility_resumed"), pauses);
  EXPECT_THAT(run.err, AllOf(HasSubstr("policy.budget"), HasSubstr("0.17 of 0.30 node-hours")));
}

TEST(TestbedBudget, AUserAllowsOneJobBeyondAFacilitysBudget) {
  TestbedProject project;
  NEED_TESTBED(project);
  project.set_rounds(1);
  project.set_keys("alba", "budget: " + std::string(kLessThanAJob));
  project.write_config();
  auto run = project.start_run();
  ASSERT_TRUE(project.await_status("facilities.alba.budget.node_hours is 0.16"))
      << project.status();
  ASSERT_TRUE(project.await_events("update_accepted", 1)) << "brno's";
  EXPECT_EQ(project.trainings(), std::vector<std::string>{"brno 1 1"});
  EXPECT_TRUE(project.jobs("alba").empty());
  EXPECT_EQ(project.xffl({"resume", "-p", project.path().string(), "alba"}).exit_code, 0);
  EXPECT_EQ(run.finish(), 0);
  EXPECT_THAT(project.trainings(), testing::UnorderedElementsAre("alba 1 1", "brno 1 1"));
  const auto script = [&](const char* name) {
    const history::RunFolder folder(project.path() / "runs", RunName("0001"));
    return read_file(folder.facility(1, FacilityName(name)) / "job.sh", 1 << 20);
  };
  EXPECT_THAT(script("alba"), HasSubstr("#SBATCH --no-requeue"));
  EXPECT_THAT(script("brno"), HasSubstr("#SBATCH --requeue"));
}

}  // namespace
}  // namespace xffl
