// Thousands of federations in bad faults; a seed that fails is a test of its own afterwards.
#include "simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace xffl::test {
namespace {

using facility::Event;

uint64_t num_seeds(uint64_t usual) {
  const char* asked = std::getenv("XFFL_SEEDS");
  return asked ? std::strtoull(asked, nullptr, 10) : usual;
}

constexpr uint64_t kBlocks = 4;  // so that several cores share the seeds

class SimulatedFaults : public testing::TestWithParam<uint64_t> {};

TEST_P(SimulatedFaults, EveryPromiseHolds) {
  int64_t kills = 0, resumes = 0, extra = 0, hours = 0, evaluations = 0, taken = 0;
  int64_t not_unpacked = 0, pauses = 0, without_late = 0, departures = 0;
  const uint64_t seeds = num_seeds(10'000) / kBlocks;
  const uint64_t first = GetParam() * seeds + 1;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const SimulationResult result = simulate(seed);
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    kills += result.kills;
    resumes += result.resumes;
    extra += result.extra_trainings;
    evaluations += result.evaluations;
    taken += result.taken;
    not_unpacked += result.not_unpacked;
    pauses += result.pauses;
    without_late += result.without_late;
    departures += result.departures;
    hours += result.simulated.count() - 1'767'225'600 / 3600;
  }
  std::cout << seeds << " federations, " << hours / 24 << " simulated days, " << kills << " kills, "
            << resumes << " resumed by people, " << extra << " repeated trainings, " << evaluations
            << " evaluations, " << taken << " without the queue, " << not_unpacked
            << " models not unpacked, " << pauses << " pauses, " << without_late
            << " rounds without a late facility, " << departures << " departures\n";
  EXPECT_GT(not_unpacked, static_cast<int64_t>(seeds / 100));
  EXPECT_GT(departures, static_cast<int64_t>(seeds / 20));
  EXPECT_GT(without_late, static_cast<int64_t>(seeds / 20));
  EXPECT_GT(pauses, static_cast<int64_t>(seeds / 100));
  EXPECT_GT(taken, static_cast<int64_t>(seeds / 10));
  EXPECT_GT(evaluations, static_cast<int64_t>(seeds / 3));
  EXPECT_GT(kills, static_cast<int64_t>(seeds / 10));
}
INSTANTIATE_TEST_SUITE_P(Block, SimulatedFaults, testing::Range<uint64_t>(0, kBlocks));

class SimulatedBudgets : public testing::TestWithParam<uint64_t> {};

// No facility and no run uses more node-hours than its budget, beyond the jobs that users grant.
TEST_P(SimulatedBudgets, AreNeverOverspent) {
  SimulationOptions options;
  options.budgets = true;
  int64_t pauses = 0, taken = 0;
  const uint64_t seeds = num_seeds(2'000) / kBlocks;
  const uint64_t first = GetParam() * seeds + 1;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const SimulationResult result = simulate(seed, options);
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    pauses += result.budget_pauses;
    taken += result.taken;
  }
  std::cout << seeds << " federations with budgets, " << pauses << " pauses by them, " << taken
            << " kept allocations taken\n";
  EXPECT_GT(pauses, static_cast<int64_t>(seeds / 4));
  EXPECT_GT(taken, static_cast<int64_t>(seeds / 20));
}
INSTANTIATE_TEST_SUITE_P(Block, SimulatedBudgets, testing::Range<uint64_t>(0, kBlocks));

// XFFL_SEED=229 prints the decisions of that seed.
TEST(Simulation, ShowsASeed) {
  const char* seed = std::getenv("XFFL_SEED");
  if (!seed) GTEST_SKIP() << "XFFL_SEED names no seed to show";
  SimulationOptions options;
  options.trace = &std::cout;
  options.budgets = std::getenv("XFFL_BUDGETS") != nullptr;
  EXPECT_EQ(simulate(std::strtoull(seed, nullptr, 10), options).violation, "");
}

TEST(Simulation, WithoutFaultsEachFacilityTrainsOnce) {
  SimulationOptions kind;
  kind.deadlines = false;
  kind.pause = 0;
  kind.leave = 0;
  kind.faults = kNoFaults;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const SimulationResult result = simulate(seed, kind);
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    ASSERT_EQ(result.extra_trainings, 0) << "seed " << seed;
    ASSERT_EQ(result.evaluations, result.evaluations_asked) << "seed " << seed;
  }
}

int violations(const SimulationOptions& options) {
  int count = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) count += !simulate(seed, options).violation.empty();
  return count;
}

TEST(Simulation, TheOracleNoticesUnknownJobsTakenForFinished) {
  SimulationOptions wrong;
  wrong.distort = [](Event event) {
    if (auto* looked = std::get_if<facility::Polled>(&event); looked && looked->status)
      if (looked->status->state != submit::JobState::kPending)
        looked->status->state = submit::JobState::kEnded;
    return event;
  };
  EXPECT_GT(violations(wrong), 0);
}

TEST(Simulation, TheOracleNoticesMissingFences) {
  SimulationOptions wrong;
  wrong.fences_work = false;
  // Other jobs of an uncertain end are found and cancelled: the fence is for those that appear
  // late.
  wrong.faults.submit_stalls = 0.9;
  wrong.faults.submit_refused = 0.1;
  EXPECT_GT(violations(wrong), 0);
}

TEST(Simulation, TheOracleNoticesSpendingBeyondABudget) {
  SimulationOptions wrong;
  wrong.budgets = true;
  wrong.obeys_budgets = false;
  EXPECT_GT(violations(wrong), 0);
}

TEST(Simulation, IsDeterministic) {
  for (const uint64_t seed : {7u, 77u, 777u}) {
    const SimulationResult first = simulate(seed), second = simulate(seed);
    EXPECT_EQ(first.kills, second.kills);
    EXPECT_EQ(first.simulated, second.simulated);
    EXPECT_EQ(first.extra_trainings, second.extra_trainings);
  }
}

}  // namespace
}  // namespace xffl::test
