// Budgets of node-hours: the comparison, and the machine's answers.
#include "xffl/facility/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine_fixture.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using test::MachineFixture;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const FacilityName kAlba("alba"), kBrno("brno");

// Jobs of two nodes for three hours.
config::Facility facility(const FacilityName& name, double node_hours) {
  config::Facility facility;
  facility.name = name;
  facility.scheduler = submit::QueueSettings("slurm");
  facility.scheduler.as<submit::SlurmSettings>().nodes = 2;
  facility.scheduler.as<submit::SlurmSettings>().time = hours(3);
  facility.budget.node_hours = node_hours;
  return facility;
}

config::Experiment experiment(double alba, double run) {
  config::Experiment experiment;
  experiment.facilities = {facility(kAlba, alba), facility(kBrno, 0)};
  experiment.policy.budget.node_hours = run;
  return experiment;
}

void intend(history::Spending& spending, const FacilityName& facility) {
  spending.add({.seq = 1,
                .time_utc = {},
                .scope = {.round = 1, .facility = facility, .attempt = 1},
                .event = history::SubmitIntended{.job_name = "j",
                                                 .script_sha256 = "s",
                                                 .nodes = 2,
                                                 .walltime_s = 3 * 3600,
                                                 .keep_s = 0}});
}

std::optional<std::string> alba_over(double alba, double run, const history::Spending& spending) {
  const config::Experiment all = experiment(alba, run);
  return over_budget(all, all.facilities.front(), spending);
}

TEST(OverBudget, ComparesTheWholeWalltimeOfTheNextJob) {
  EXPECT_FALSE(alba_over(0, 0, {})) << "no budget";
  EXPECT_FALSE(alba_over(6, 6, {}));
  EXPECT_THAT(alba_over(5.9, 0, {}).value_or(""),
              AllOf(HasSubstr("facilities.alba.budget.node_hours is 5.9"), HasSubstr("0.0"),
                    HasSubstr("6.0")));
  EXPECT_THAT(alba_over(0, 5.9, {}).value_or(""), HasSubstr("policy.budget.node_hours is 5.9"));
}

TEST(OverBudget, CountsTheJobsOfAllFacilitiesAgainstTheRunsBudget) {
  history::Spending spending;
  intend(spending, kBrno);
  EXPECT_FALSE(alba_over(6, 0, spending)) << "brno's job is not alba's";
  EXPECT_FALSE(alba_over(6, 12, spending));
  EXPECT_TRUE(alba_over(6, 11.9, spending));
}

// The spending has the reservation of the job that is submitted next.
TEST(OverBudget, CountsAReservedJobOnce) {
  history::Spending spending;
  intend(spending, kAlba);
  const config::Experiment all = experiment(6, 6);
  const config::Facility& alba = all.facilities.front();
  EXPECT_TRUE(over_budget(all, alba, spending)) << "another job";
  EXPECT_FALSE(over_budget(all, alba, spending, spending.reserved(kAlba, 1, 1)));
}

TEST(OverBudget, AUserMayGrantOneJobBeyondABudget) {
  history::Spending spending;
  const auto add = [&](const history::Event& event) {
    spending.add({.seq = 1, .time_utc = {}, .scope = {.facility = kAlba}, .event = event});
  };
  add(history::FacilityPaused{.reason = "spent", .by_budget = true});
  add(history::FacilityResumed{.new_budget = true});
  EXPECT_FALSE(alba_over(5.9, 5.9, spending));
  intend(spending, kAlba);
  EXPECT_TRUE(alba_over(5.9, 5.9, spending));
}

TEST(BudgetWarning, BeginsAtItsShare) {
  const config::Budget budget{.node_hours = 100, .warn_at = 0.75};
  EXPECT_FALSE(budget_warning(budget, 74.9 * 3600));
  EXPECT_THAT(budget_warning(budget, 75 * 3600.0).value_or(""), HasSubstr("75.0 of 100.0"));
  EXPECT_FALSE(budget_warning({}, 1e9));
}

TEST(FacilityMachineBudget, PausesBeforeTheModelIsSent) {
  MachineFixture fixture;
  fixture.now.over_budget = "facilities.alba.budget.node_hours is 5.9";
  fixture.give(Resumed{});
  EXPECT_TRUE(fixture.action<Sleep>());
  ASSERT_THAT(fixture.kinds, ElementsAre("facility_paused"));
  const auto& paused = std::get<history::FacilityPaused>(fixture.last.records.at(0).event);
  EXPECT_TRUE(paused.by_budget);
  EXPECT_EQ(paused.reason, *fixture.now.over_budget);
}

TEST(FacilityMachineBudget, PausesBetweenThePushAndTheSubmission) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  ASSERT_TRUE(fixture.action<Push>());
  fixture.now.over_budget = "another facility's job came first";
  fixture.give(Pushed{});
  EXPECT_TRUE(fixture.action<Sleep>());
  EXPECT_EQ(fixture.kinds.back(), "facility_paused");
  fixture.now.paused = fixture.now.over_budget;
  fixture.now.paused_by_budget = true;
  fixture.give(TimerFired{});
  EXPECT_TRUE(fixture.action<Sleep>());
  EXPECT_EQ(fixture.kinds.back(), "facility_paused") << "once";

  fixture.now.over_budget.reset();  // that job used little
  fixture.give(TimerFired{});
  EXPECT_TRUE(fixture.action<Submit>());
  EXPECT_THAT(fixture.kinds, ElementsAre("attempt_opened", "pushed", "facility_paused",
                                         "facility_resumed", "submit_intended"));
}

TEST(FacilityMachineBudget, EndsNoPauseOfAUser) {
  MachineFixture fixture;
  fixture.now.paused = "maintenance";
  fixture.give(Resumed{});
  fixture.give(TimerFired{});
  EXPECT_TRUE(fixture.action<Sleep>());
  EXPECT_TRUE(fixture.kinds.empty());
}

// The job that is on record runs to its end.
TEST(FacilityMachineBudget, EndsNoJob) {
  MachineFixture fixture;
  fixture.to_the_job();
  fixture.now.over_budget = "spent";
  fixture.give(Polled{.reported = true, .status = {}});
  EXPECT_TRUE(fixture.action<FetchUpdate>());
  MachineFixture restarted;
  restarted.last.machine.known = fixture.last.machine.known;
  restarted.now.over_budget = "spent";
  restarted.give(Resumed{});
  EXPECT_TRUE(restarted.action<Poll>());
}

// The run would otherwise wait for a user although all its models are published.
TEST(FacilityMachineBudget, OmitsTheEvaluationOfTheLastModel) {
  for (const bool pushed : {false, true}) {
    MachineFixture fixture;
    fixture.policy.evaluates = true;
    if (pushed) fixture.give(Resumed{});
    fixture.now.over_budget = "spent";
    pushed ? fixture.give(Pushed{}) : fixture.give(Resumed{});
    EXPECT_TRUE(fixture.action<Finish>()) << pushed;
    EXPECT_EQ(fixture.last.machine.known.missing, "spent") << pushed;
    EXPECT_THAT(fixture.kinds, testing::Not(testing::Contains("facility_paused")));
  }
}

}  // namespace
}  // namespace xffl::facility
