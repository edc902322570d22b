#include "xffl/usage/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/synthetic_run.h"
#include "xffl/config/load.h"

namespace xffl::usage {
namespace {

using history::EventScope;
using test::SyntheticRun;
using testing::ElementsAre;

constexpr int64_t kBegin = 1'772'366'400;  // 2026-03-01T12:00:00Z

const FacilityName kSite = SyntheticRun::name(0);

job::JobStart start_at(int64_t seconds, const std::string& job = "4711", int nodes = 2) {
  job::JobStart start;
  start.job = job;
  start.start = kBegin + seconds;
  start.nodes = nodes;
  return start;
}

job::JobUsage usage_of(std::vector<job::JobStart> starts) {
  job::JobUsage usage;
  usage.clock_offset = 0;
  usage.clock_error = 0.5;
  usage.starts = std::move(starts);
  return usage;
}

// A run whose attempts end with the given times.
class TimedRun : public SyntheticRun {
 public:
  TimedRun() : SyntheticRun(3) {}
  void accept_with(int round, int attempt, const std::optional<job::JobUsage>& usage,
                   double seconds = 80, int64_t gpu_joules = 0) {
    job::JobReport report = this->report(round, 0, attempt);
    report.total_seconds = seconds;
    report.gpu_energy_joules = gpu_joules;
    add({round, kSite, attempt}, history::UpdateAccepted{hash('3'), report, 0.01, usage});
  }
  void fail_with(int round, int attempt, const std::optional<job::JobUsage>& usage,
                 std::optional<int64_t> steps = {}) {
    history::AttemptFailed failed{.reason = "the job ended without a report"};
    failed.steps = steps;
    failed.usage = usage;
    add({round, kSite, attempt}, failed);
  }
  Ledger ledger(const GpusPerNode& gpus = {{kSite, 4}}) const {
    return make_ledger(events(), gpus);
  }
};

// "attempt restart outcome source seconds", one per row.
std::vector<std::string> lines(const Ledger& ledger) {
  std::vector<std::string> all;
  for (const Row& row : ledger.rows)
    all.push_back(std::to_string(row.attempt) + " " + std::to_string(row.restart) + " " +
                  std::string(name_of(row.outcome)) + " " +
                  (row.source ? std::string(name_of(*row.source)) : "-") + " " +
                  (row.elapsed ? std::to_string(static_cast<int>(*row.elapsed)) : "-"));
  return all;
}

TEST(Ledger, HasARowForAnAcceptedAttempt) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobStart start = start_at(20);
  start.train = kBegin + 25;
  start.trained = kBegin + 95;
  start.end = kBegin + 97;
  run.accept_with(1, 1, usage_of({start}));
  const Ledger ledger = run.ledger();
  EXPECT_THAT(lines(ledger), ElementsAre("1 0 used job 77"));
  const Row& row = ledger.rows.front();
  EXPECT_EQ(row.node_seconds(), 154);
  EXPECT_EQ(row.gpu_seconds(), 616);
  EXPECT_EQ(format_utc(*row.start), "2026-03-01T12:00:20.000Z");
  EXPECT_EQ(format_utc(*row.end), "2026-03-01T12:01:37.000Z");
  const Total total = ledger.by_facility().at(kSite);
  EXPECT_EQ(total.starts, 1);
  EXPECT_EQ(total.node_seconds.seconds, 154);
  EXPECT_EQ(total.node_seconds.unknown, 0);
  EXPECT_EQ(total.node_seconds_by_outcome.at(Outcome::kUsed).seconds, 154);
  EXPECT_EQ(total.starts_by_source.at(Source::kJob), 1);
}

TEST(Ledger, UsesTheReportWhenTheScriptHadNotEnded) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobStart start = start_at(20);
  start.train = kBegin + 25;
  start.last_beat = kBegin + 30;
  run.accept_with(1, 1, usage_of({start}), 80);
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 used job 85")) << "5 s to the launch and 80 s";
}

TEST(Ledger, HasARowForEachStartOfARequeuedJob) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobStart first = start_at(0), second = start_at(300), third = start_at(500);
  first.last_beat = kBegin + 60;
  second.restart = 1;  // killed before its first heartbeat
  third.restart = 2;
  third.end = kBegin + 600;
  run.accept_with(1, 1, usage_of({first, second, third}));
  const Ledger ledger = run.ledger();
  EXPECT_THAT(lines(ledger),
              ElementsAre("1 0 lost bounded 60", "1 1 lost - -", "1 2 used job 100"));
  EXPECT_EQ(ledger.total().node_seconds.seconds, 2 * 160);
  EXPECT_EQ(ledger.total().node_seconds.unknown, 1) << "a start without a known end is not 0";
  EXPECT_EQ(ledger.total().starts, 3);
}

TEST(Ledger, CountsFailedAttemptsAsLost) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobStart killed = start_at(0);
  killed.last_beat = kBegin + 45;
  run.fail_with(1, 1, usage_of({killed}));
  run.open(1, 0, 2);
  run.fail_with(1, 2, {});
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 lost bounded 45", "2 0 lost - -"));
}

// The first facility's job of 100 s ends with a checkpoint after 5 steps.
void checkpoint_of_first_attempt(TimedRun& run) {
  run.open(1, 0);
  job::JobStart start = start_at(0);
  start.end = kBegin + 100;
  run.fail_with(1, 1, usage_of({start}), 5);
}

TEST(Ledger, CountsACheckpointThatWasContinuedAsUsed) {
  TimedRun run;
  run.plan(1, 1);
  checkpoint_of_first_attempt(run);
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 lost job 100"));
  run.open(1, 0, 2);
  job::JobStart next = start_at(200, "4712");
  next.end = kBegin + 250;
  run.accept_with(1, 2, usage_of({next}));
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 used job 100", "2 0 used job 50"));
  run.add({1, kSite, 2}, history::UpdateLost{"both copies are damaged"});
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 lost job 100", "2 0 lost job 50"));
}

TEST(Ledger, CountsACheckpointAsLostWhenOnlyAnotherFacilityTriedAgain) {
  TimedRun run;
  run.plan(1, 2);
  checkpoint_of_first_attempt(run);
  run.open(1, 1, 2);
  run.accept(1, 1, 2);
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 lost job 100", "2 0 used job 77"));
}

TEST(Ledger, CountsACheckpointAsLostWhenOnlyALaterRoundHasAnUpdate) {
  TimedRun run;
  run.plan(1, 1);
  checkpoint_of_first_attempt(run);
  run.plan(2, 1);
  run.open(2, 0, 2);
  job::JobStart next = start_at(200, "4712");
  next.end = kBegin + 250;
  run.accept_with(2, 2, usage_of({next}));
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 lost job 100", "2 0 used job 50"));
}

TEST(Ledger, HasTheIdleTimeOfAKeptAllocation) {
  TimedRun run;
  for (int round = 1; round <= 2; ++round) {
    run.plan(round, 1);
    run.open(round, 0);
    job::JobStart start = start_at(round * 1000, "4711");
    start.handover = round - 1;
    if (round == 1) start.offered = kBegin + 1100;
    if (round == 2) start.end = kBegin + 2050;
    run.accept_with(round, 1, usage_of({start}), 80, 1000);
    run.publish(round, {0});
  }
  const Ledger ledger = run.ledger();
  EXPECT_THAT(lines(ledger),
              ElementsAre("1 0 used job 100", "1 0 idle job 900", "1 0 used job 50"));
  EXPECT_EQ(ledger.total().node_seconds.seconds, 2 * 1050) << "the whole allocation";
  EXPECT_EQ(ledger.total().node_seconds_by_outcome.at(Outcome::kIdle).seconds, 1800);
  EXPECT_EQ(ledger.total().starts, 2) << "idle time is no start";
  EXPECT_EQ(ledger.total().gpu_energy_joules, 2000) << "of the two trainings";
}

// Its script writes its first line before anything else.
TEST(Ledger, HasNoRowForAJobThatDidNotStart) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  run.fail_with(1, 1, usage_of({}));
  EXPECT_TRUE(run.ledger().rows.empty());
}

TEST(Ledger, TellsEvaluationsAndLostUpdatesApart) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobStart start = start_at(0);
  start.end = kBegin + 100;
  run.accept_with(1, 1, usage_of({start}));
  run.add({1, kSite, 1}, history::UpdateLost{"both copies are damaged"});
  run.plan(2, 1, true);
  run.open(2, 0);
  run.accept_with(2, 1, usage_of({start}));
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 lost job 100", "1 0 evaluation job 100"));
}

TEST(Ledger, KnowsNothingOfAnOpenAttempt) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 open - -"));
  EXPECT_EQ(run.ledger().total().node_seconds.unknown, 1);
  run.add({1, kSite, 1}, history::CancelIntended{});
  run.add({1, kSite, 1}, history::CancelConfirmed{});
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 lost - -"));
}

TEST(Ledger, TakesTheReportOfAJobWithoutTimes) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobReport report = run.report(1, 0, 1);
  report.nodes = 3;
  run.add({1, kSite, 1}, history::UpdateAccepted{SyntheticRun::hash('3'), report, 0.01, {}});
  EXPECT_THAT(lines(run.ledger()), ElementsAre("1 0 used job 80"));
  EXPECT_EQ(run.ledger().rows.front().node_seconds(), 240);
}

TEST(Ledger, HasTheEnergyOfTheGpusWhereATrainerMeasuredIt) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobReport report = run.report(1, 0, 1);
  report.world_size = 4;
  report.total_seconds = 80;
  EXPECT_FALSE(run.ledger().total().gpu_energy_joules);
  report.gpu_energy_joules = 4 * 80 * 500;
  job::JobStart first = start_at(0), second = start_at(100);
  first.end = kBegin + 50;
  second.end = kBegin + 190;
  second.restart = 1;
  const history::UpdateAccepted accepted{SyntheticRun::hash('3'), report, 0.01,
                                         usage_of({first, second})};
  run.add({1, kSite, 1}, accepted);
  const Ledger ledger = run.ledger();
  ASSERT_EQ(ledger.rows.size(), 2U);
  EXPECT_FALSE(ledger.rows[0].gpu_energy_joules) << "the start that a requeue ended has no report";
  EXPECT_EQ(ledger.rows[1].gpu_energy_joules, 160'000);
  EXPECT_EQ(ledger.total().gpu_energy_joules, 160'000);
  EXPECT_EQ(ledger.total().gpu_energy_rows, 1);
}

TEST(Ledger, IgnoresMoreEnergyThanGpusCanUse) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobReport report = run.report(1, 0, 1);
  report.world_size = 4;
  report.total_seconds = 80;
  report.gpu_energy_joules = 4 * 81 * 2000 + 1;
  run.add({1, kSite, 1}, history::UpdateAccepted{SyntheticRun::hash('3'), report, 0.01, {}});
  EXPECT_FALSE(run.ledger().total().gpu_energy_joules);
}

// The facility's clock is a day ahead: durations come from its clock alone.
TEST(Ledger, ShiftsTimesByTheClockOffsetAndCountsNegativeDurations) {
  TimedRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobStart start = start_at(86400);
  start.end = kBegin + 86500;
  job::JobUsage usage = usage_of({start});
  usage.clock_offset = 86400;
  run.accept_with(1, 1, usage);
  EXPECT_EQ(format_utc(*run.ledger().rows.front().start), "2026-03-01T12:00:00.000Z");
  EXPECT_EQ(run.ledger().rows.front().elapsed, 100);
  EXPECT_EQ(run.ledger().clock_anomalies, 0);

  TimedRun backwards;
  backwards.plan(1, 1);
  backwards.open(1, 0);
  start.end = kBegin;
  backwards.accept_with(1, 1, usage_of({start}));
  EXPECT_EQ(backwards.ledger().rows.front().elapsed, 0);
  EXPECT_EQ(backwards.ledger().clock_anomalies, 1);
}

TEST(GpusPerNode, AreThoseOfEachFacilitysJobs) {
  const config::Experiment experiment = config::parse_experiment(
      "project: p\nmodel: /m\ntraining: {steps_per_round: 1}\nfacilities:\n"
      "  a: {scheduler: slurm, slurm: {time: 1h, gpus_per_node: 4}, data: {train: /t}}\n"
      "  b: {scheduler: slurm, slurm: {time: 1h, gpus_per_node: 2}, data: {train: /t}}\n"
      "  c: {data: {train: /t}}\n",
      "xffl.yaml", "/p");
  EXPECT_EQ(gpus_per_node(experiment),
            (GpusPerNode{{FacilityName("a"), 4}, {FacilityName("b"), 2}}));
}

TEST(Ledger, DoesNotKnowGpusWithoutTheConfiguration) {
  TimedRun run;
  run.round(1, 1);
  const Ledger ledger = run.ledger({});
  EXPECT_FALSE(ledger.rows.front().gpus);
  EXPECT_EQ(ledger.total().gpu_seconds.unknown, 1);
  EXPECT_EQ(ledger.total().node_seconds.unknown, 0);
}

}  // namespace
}  // namespace xffl::usage
