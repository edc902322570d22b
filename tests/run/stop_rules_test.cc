// The rules alone, and in a run.
#include "xffl/run/stop_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "small_federation.h"

namespace xffl::run {
namespace {

using config::StopRules;
using std::chrono::hours;
using testing::HasSubstr;

// The losses of the models 0, 1, ..., with the same node-hours in each round.
history::Progress with_losses(const std::vector<double>& losses, double node_hours = 1) {
  history::Progress progress;
  const auto add = [&](int round, const history::Event& event) {
    history::RecordedEvent recorded;
    recorded.time_utc = "2026-03-01T12:00:00.000Z";
    recorded.scope.round = round;
    recorded.scope.facility = FacilityName("alba");
    recorded.scope.attempt = 1;
    recorded.event = event;
    progress.add(recorded, [&] { return 3600.0 * node_hours * round; });
  };
  add(0, history::RunCreated{});
  for (size_t i = 0; i < losses.size(); ++i) {
    history::UpdateAccepted update;
    update.report.validation.push_back({"it", 100, losses[i], 0});
    add(static_cast<int>(i) + 1, update);
    add(static_cast<int>(i) + 1, history::Published{"m"});
  }
  return progress;
}

std::string met(const StopRules& rules, const std::vector<double>& losses) {
  const auto rule = met_rule(rules, with_losses(losses), *parse_utc("2026-03-02T12:00:00.000Z"));
  return rule ? rule->rule + ": " + rule->reason : "none";
}

TEST(StopRules, NoRuleIsNeverMet) { EXPECT_EQ(met({}, {3, 3, 3, 3, 3, 3, 3, 3}), "none"); }

TEST(StopRules, NoBetterForCountsRoundsAfterTheBestModel) {
  const StopRules rules{.no_better_for = 2};
  EXPECT_EQ(met(rules, {}), "none");
  EXPECT_EQ(met(rules, {3, 2, 2.5}), "none");
  EXPECT_EQ(met(rules, {3, 2, 2.5, 2}),
            "no_better_for: the mean validation loss has not been below 2 for 2 rounds");
  EXPECT_EQ(met(rules, {3, 2, 2.5, 1.9}), "none");
}

TEST(StopRules, LossBelowLooksAtTheNewestMeasurement) {
  EXPECT_EQ(met({.loss_below = 2}, {3, 2}), "none");
  EXPECT_EQ(met({.loss_below = 2}, {3, 1.5}),
            "loss_below: the mean validation loss is 1.5, below 2");
}

TEST(StopRules, GainPerNodeHourSpansThreeRounds) {
  const StopRules rules{.gain_per_node_hour = 0.1};
  EXPECT_EQ(met(rules, {3, 3, 3}), "none") << "too few measurements";
  EXPECT_EQ(met(rules, {3, 3, 2.9, 2.69}), "none");
  EXPECT_EQ(met(rules, {9, 3, 3, 2.9, 2.69}), "none") << "the hours of the first round are over";
  EXPECT_THAT(met(rules, {9, 3, 3, 2.9, 2.85}), HasSubstr("by 0.05 per node-hour"))
      << "the gain of the first round is over";
  EXPECT_EQ(met(rules, {3, 3, 2.9, 2.85}),
            "gain_per_node_hour: the last 3 measured rounds lowered the mean validation loss by "
            "0.05 per node-hour, less than 0.1");
  EXPECT_THAT(met(rules, {2, 2.5, 3, 3.5}), HasSubstr("by -0.5 per node-hour"));
}

// The node-hours of the jobs may be unknown.
TEST(StopRules, GainPerNodeHourNeedsNodeHours) {
  const auto met_with = [](double node_hours) {
    return met_rule({.gain_per_node_hour = 0.1}, with_losses({3, 3, 3, 3}, node_hours),
                    *parse_utc("2026-03-02T12:00:00.000Z"));
  };
  EXPECT_TRUE(met_with(1));
  EXPECT_FALSE(met_with(0));
}

TEST(StopRules, WallClockCountsFromTheCreation) {
  EXPECT_EQ(met({.wall_clock = hours(25)}, {}), "none");
  EXPECT_EQ(met({.wall_clock = hours(24)}, {}),
            "wall_clock: the run began 2026-03-01T12:00:00.000Z, more than 24 h 0 min ago");
}

// A facility that measures for the first time changes the mean, and not the model.
TEST(StopRules, OnlyLossesOfTheSameSetsAreCompared) {
  history::Progress progress;
  const auto add = [&](int round, const std::string& facility, const history::Event& event) {
    history::RecordedEvent recorded;
    recorded.scope.round = round;
    recorded.scope.facility = FacilityName(facility);
    recorded.event = event;
    progress.add(recorded, [&] { return 3600.0 * round; });
  };
  const auto measure = [&](int round, const std::string& facility, double loss) {
    history::UpdateAccepted update;
    update.report.validation.push_back({"it", 100, loss, 0});
    add(round, facility, update);
  };
  measure(1, "alba", 1);
  add(1, "alba", history::Published{"m"});
  for (const int round : {2, 3}) {
    measure(round, "alba", 1 - 0.1 * round);
    measure(round, "brno", 7 - round);
    add(round, "alba", history::Published{"m"});
  }
  EXPECT_FALSE(met_rule({.no_better_for = 2}, progress, *parse_utc("2026-03-02T12:00:00.000Z")))
      << "the means are 1 at alba, 2.9 and 2.35 at both";
}

class StopRulesRun : public test::SmallFederation {
 protected:
  // Rounds whose input models have these losses at brno, and the same loss from then on.
  void set_losses(const std::vector<double>& losses) {
    change_report_ = [losses](const job::JobSpec& spec, job::JobReport& report) {
      const size_t i = std::min<size_t>(losses.size(), static_cast<size_t>(spec.key.round)) - 1;
      for (auto& result : report.validation) result.nll_before = losses[i];
    };
  }
  history::RunState state() const { return history::read_newest(run_folder().journal()); }
};

TEST_F(StopRulesRun, CompletesTheRunBeforeItsLastRound) {
  set_losses({3, 2, 2.5, 2.2, 1});
  EXPECT_EQ(
      run("policy: {evaluate_last: false, stop_when: {no_better_for: 2}}\n", 9).rounds_published,
      4);
  EXPECT_TRUE(state().completed);
  ASSERT_TRUE(state().stop_rule);
  EXPECT_EQ(state().stop_rule->rule, "no_better_for");
  EXPECT_EQ(jobs_of("alba").size(), 4u);
  EXPECT_EQ(run("policy: {evaluate_last: false}\n", 9).rounds_published, 4)
      << "the decision stays when the rule goes";
}

TEST_F(StopRulesRun, TheLastModelIsStillMeasured) {
  set_losses({1});
  EXPECT_EQ(run("policy: {stop_when: {loss_below: 2}}\n", 9).rounds_published, 1);
  ASSERT_EQ(jobs_of("brno").size(), 2u);
  EXPECT_EQ(jobs_of("brno")[1].key.round, 2);
  EXPECT_EQ(jobs_of("brno")[1].training.steps, 0) << "an evaluation";
  EXPECT_TRUE(state().completed);
}

TEST_F(StopRulesRun, KeptAllocationsAreReleased) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  std::atomic<int> released{0};
  on_release_ = [&](const std::string&) { ++released; };
  set_losses({1});
  EXPECT_EQ(run("policy: {evaluate_last: false, stop_when: {loss_below: 2}}\n", 9).rounds_published,
            1);
  EXPECT_EQ(released, 2) << "alba's and brno's";
}

// alba has no validation set.
TEST_F(StopRulesRun, TheAllocationOfAFacilityThatDoesNotEvaluateIsReleasedAheadOfTheEvaluation) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  std::atomic<int> of_alba{0}, of_brno{0};
  on_release_ = [&](const std::string& facility) { ++(facility == "alba" ? of_alba : of_brno); };
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.training.steps > 0) return;
    EXPECT_EQ(of_alba, 1);
    EXPECT_EQ(of_brno, 0) << "the evaluation takes it";
  };
  set_losses({1});
  EXPECT_EQ(run("policy: {stop_when: {loss_below: 2}}\n", 9).rounds_published, 1);
  EXPECT_EQ(jobs_of("brno").size(), 2u);
}

TEST_F(StopRulesRun, ACancellationAheadOfTheEvaluationReleasesAllAllocations) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  const std::string policy = "policy: {stop_when: {loss_below: 2}}\n";
  std::atomic<int> released{0};
  on_release_ = [&](const std::string&) { ++released; };
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  set_losses({1});
  EXPECT_THROW(run(policy, 9), Error);
  EXPECT_EQ(released, 0);
  facility::Services made = services();
  operate(experiment(policy, 9), run_folder(), made,
          {history::Request::Kind::kCancel, {}, "enough"}, std::chrono::seconds(1));
  EXPECT_EQ(released, 2) << "alba's and brno's";
}

TEST_F(StopRulesRun, AnEvaluationKeepsNoAllocation) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  set_losses({1});
  EXPECT_EQ(run("policy: {stop_when: {loss_below: 2}}\n", 9).rounds_published, 1);
  int evaluations = 0;
  for (const history::StoredEvent& event : history::read_events(run_folder().journal()))
    if (event.kind == "submit_intended" && event.round == 2) {
      ++evaluations;
      EXPECT_EQ(parse_json(event.payload, event.kind).value("keep_s", int64_t{0}), 0);
    }
  EXPECT_GT(evaluations, 0);
}

TEST_F(StopRulesRun, ARuleThatIsNotMetChangesNothing) {
  set_losses({3, 2, 1.5});
  EXPECT_EQ(run("policy: {evaluate_last: false, stop_when: {no_better_for: 1, loss_below: 1, "
                "wall_clock: 365d}}\n",
                3)
                .rounds_published,
            3);
  EXPECT_FALSE(state().stop_rule);
}

// The coordinator restarts within the round.
TEST_F(StopRulesRun, ARuleThatIsMetWithinARoundWaitsForTheRoundsEnd) {
  const std::string policy = "policy: {evaluate_last: false, stop_when: {wall_clock: 30d}}\n";
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.round == 2) stop_.request_stop();
  };
  EXPECT_THROW(run(policy, 9), Error);
  on_submit_ = {};
  stop_ = std::stop_source();
  clock_.advance(hours(24 * 365 * 100));  // past the run's creation, which has today's date
  EXPECT_EQ(run(policy, 9).rounds_published, 2);
  ASSERT_TRUE(state().stop_rule);
  EXPECT_EQ(state().stop_rule->rule, "wall_clock");
}

}  // namespace
}  // namespace xffl::run
