// The schedulers' accounting in the ledger.
#include "xffl/usage/accounting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/synthetic_run.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/usage/format.h"
#include "xffl/usage/ledger.h"

namespace xffl::usage {
namespace {

using submit::AccountedStart;
using test::SyntheticRun;
using testing::ElementsAre;

constexpr int64_t kBegin = 1'772'366'400;  // 2026-03-01T12:00:00Z
const FacilityName kSite = SyntheticRun::name(0);

job::JobStart stamped(int64_t from, std::optional<int64_t> to, const std::string& job = "7") {
  job::JobStart start;
  start.job = job;
  start.start = kBegin + from;
  start.nodes = 2;
  if (to) start.end = kBegin + *to;
  return start;
}

AccountedStart accounted(int64_t from, std::optional<int64_t> to, const std::string& job = "7") {
  AccountedStart start;
  start.job = JobId(job);
  start.state = "COMPLETED";
  start.start = kBegin + from;
  if (to) start.end = kBegin + *to;
  start.nodes = 2;
  return start;
}

// A run whose first facility has jobs with these times.
class AccountedRun : public SyntheticRun {
 public:
  AccountedRun() : SyntheticRun(3) {}
  void job(int round, int attempt, const std::string& id, bool accepted,
           const std::optional<std::vector<job::JobStart>>& starts, double clock_offset = 0) {
    add({round, kSite, attempt}, history::AttemptOpened{nonce(round, 0, attempt)});
    add({round, kSite, attempt}, history::SubmitIntended{"job-" + id, "s"});
    add({round, kSite, attempt}, history::Submitted{JobId(id), false, {}});
    std::optional<job::JobUsage> usage;
    if (starts)
      usage = job::JobUsage{.clock_offset = clock_offset, .clock_error = 0.5, .starts = *starts};
    if (accepted)
      add({round, kSite, attempt},
          history::UpdateAccepted{hash('3'), report(round, 0, attempt), 0.01, usage});
    else
      add({round, kSite, attempt},
          history::AttemptFailed{.reason = "r", .output = "", .usage = usage});
  }
  // "job restart outcome source node-seconds", one per row.
  std::vector<std::string> rows(const std::vector<AccountedStart>& starts) const {
    std::vector<std::string> all;
    for (const Row& row : make_ledger(events(), {{kSite, 4}}, {{kSite, starts}}).rows)
      all.push_back(row.job.str() + " " + std::to_string(row.restart) + " " +
                    std::string(name_of(row.outcome)) + " " +
                    (row.source ? std::string(name_of(*row.source)) : "none") + " " +
                    (row.node_seconds() ? std::to_string(std::lround(*row.node_seconds())) : "-"));
    return all;
  }
};

TEST(AccountingInTheLedger, ReplacesTheScriptsTimes) {
  AccountedRun run;
  run.job(1, 1, "7", true, {{stamped(10, 100)}});
  EXPECT_THAT(run.rows({}), ElementsAre("7 0 used job 180"));
  EXPECT_THAT(run.rows({accounted(5, 103)}), ElementsAre("7 0 used accounting 196"));
  EXPECT_THAT(run.rows({accounted(5, {})}), ElementsAre("7 0 used job 180")) << "it runs";
  EXPECT_THAT(run.rows({accounted(5, 103, "8")}), ElementsAre("7 0 used job 180"));
}

// The script and the accounting have times of the facility's clock, which is a day ahead.
TEST(AccountingInTheLedger, ShiftsItsTimesByTheClockOffset) {
  AccountedRun run;
  run.job(1, 1, "7", true, {{stamped(86410, 86500)}}, 86400);
  EXPECT_THAT(run.rows({accounted(86405, 86503)}), ElementsAre("7 0 used accounting 196"));
}

TEST(AccountingInTheLedger, ARequeuedJobHasARowForEachStart) {
  AccountedRun run;
  job::JobStart killed = stamped(10, {});
  killed.last_beat = kBegin + 40;
  run.job(1, 1, "7", true, {{killed, stamped(210, 300)}});
  EXPECT_THAT(run.rows({accounted(5, 50), accounted(205, 303)}),
              ElementsAre("7 0 lost accounting 90", "7 1 used accounting 196"));
  // The accounting has a start that left no times.
  EXPECT_THAT(
      run.rows({accounted(5, 50), accounted(100, 110), accounted(205, 303)}),
      ElementsAre("7 0 lost accounting 90", "7 2 used accounting 196", "7 1 lost accounting 20"));
}

TEST(AccountingInTheLedger, KnowsJobsThatLeftNoTrace) {
  AccountedRun run;
  run.job(1, 1, "6", false, std::vector<job::JobStart>{});  // a failed prolog
  run.job(1, 2, "7", false, std::nullopt);
  EXPECT_THAT(run.rows({}), ElementsAre("7 0 lost none -"));
  EXPECT_THAT(run.rows({accounted(0, 3, "6"), accounted(10, 60, "7")}),
              ElementsAre("7 0 lost accounting 100", "6 0 lost accounting 6"));
}

TEST(AccountingInTheLedger, GpusAreThoseOfAllNodes) {
  AccountedRun run;
  run.job(1, 1, "6", false, std::vector<job::JobStart>{});
  const Ledger ledger = make_ledger(run.events(), {{kSite, 4}}, {{kSite, {accounted(0, 3, "6")}}});
  ASSERT_EQ(ledger.rows.size(), 1u);
  EXPECT_EQ(ledger.rows[0].nodes, 2);
  EXPECT_EQ(ledger.rows[0].gpus, 8);
}

TEST(AccountingInTheLedger, TheRestOfAKeptAllocationBelongsToItsLastPart) {
  AccountedRun run;
  job::JobStart first = stamped(10, {}), second = stamped(150, 200);
  first.offered = kBegin + 100;
  second.handover = 1;
  run.job(1, 1, "7", true, {{first}});
  run.job(2, 1, "7", true, {{second}});
  EXPECT_THAT(run.rows({}),
              ElementsAre("7 0 used job 180", "7 0 idle job 100", "7 0 used job 100"));
  EXPECT_THAT(
      run.rows({accounted(5, 206)}),
      ElementsAre("7 0 used accounting 180", "7 0 idle accounting 100", "7 0 used accounting 122"));
  EXPECT_THAT(run.rows({accounted(50, 120)}).front(), "7 0 used job 180")
      << "less than the parts: the times contradict each other";
}

TEST(AccountingInTheLedger, HasEnergyAndTheSitesUnits) {
  AccountedRun run;
  run.job(1, 1, "7", true, {{stamped(10, 100)}});
  AccountedStart start = accounted(0, 3600);
  start.energy_joules = 7'200'000;
  start.billing = 12;
  const Ledger ledger = make_ledger(run.events(), {{kSite, 4}}, {{kSite, {start}}});
  EXPECT_EQ(ledger.total().energy_joules, 7.2e6);
  EXPECT_EQ(ledger.total().billing_hours, 12);
  EXPECT_EQ(ledger.rows.front().gpus, 8);
  EXPECT_FALSE(make_ledger(run.events(), {}, {}).total().energy_joules);
}

TEST(AccountingInTheLedger, AddsTheEnergyAndTheUnitsOfAllJobs) {
  AccountedRun run;
  run.job(1, 1, "7", true, {{stamped(10, 100)}});
  run.job(2, 1, "8", true, {{stamped(7210, 7300, "8")}});
  AccountedStart first = accounted(0, 7200), second = accounted(7200, 9000, "8");
  first.energy_joules = 3'600'000;
  second.energy_joules = 1'800'000;
  first.billing = 12;
  second.billing = 8;
  const Ledger ledger = make_ledger(run.events(), {{kSite, 4}}, {{kSite, {first, second}}});
  EXPECT_THAT(remarks(ledger),
              ElementsAre("energy by the accounting: 1.50 kWh",
                          "billing by the accounting: 28.00 hours (TRES billing x hours)"));
}

TEST(AccountingOfARun, AsksForEachJobByItsOwnName) {
  AccountedRun run;
  run.job(1, 1, "7", true, {{stamped(10, 100)}});
  run.job(2, 1, "7", true, {{stamped(150, 200)}});  // a kept allocation
  run.job(3, 1, "9", true, {{stamped(300, 400, "9")}});
  const auto jobs = jobs_of(run.events()).at(kSite);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].id, JobId("7"));
  EXPECT_EQ(jobs[0].name, "job-7");
  EXPECT_EQ(jobs[1].id, JobId("9"));
  EXPECT_EQ(jobs[1].name, "job-9");
}

// Each queue manager counts its jobs on its own.
TEST(AccountingOfARun, TwoFacilitiesMayHaveJobsOfTheSameId) {
  AccountedRun run;
  const FacilityName other = SyntheticRun::name(1);
  const std::vector<FacilityName> both{kSite, other};
  for (const FacilityName& facility : both) {
    run.add({1, facility, 1}, history::AttemptOpened{run.nonce(1, 0, 1)});
    run.add({1, facility, 1}, history::SubmitIntended{"job-of-" + facility.str(), "s"});
  }
  for (const FacilityName& facility : both)
    run.add({1, facility, 1}, history::Submitted{JobId("7"), false, {}});
  for (const FacilityName& facility : both)
    run.add({1, facility, 1}, history::AttemptFailed{.reason = "r", .output = "", .usage = {}});
  const auto jobs = jobs_of(run.events());
  for (const FacilityName& facility : both) {
    ASSERT_TRUE(jobs.contains(facility)) << facility.str();
    ASSERT_EQ(jobs.at(facility).size(), 1u);
    EXPECT_EQ(jobs.at(facility)[0].name, "job-of-" + facility.str());
  }
  const auto totals =
      make_ledger(run.events(), {}, {{kSite, {accounted(0, 10)}}, {other, {accounted(0, 70)}}})
          .by_facility();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals.at(kSite).node_seconds.seconds, 20);
  EXPECT_EQ(totals.at(other).node_seconds.seconds, 140);
}

TEST(AccountingFile, ReadsWhatItHasWritten) {
  AccountedStart start = accounted(0, 9);
  start.energy_joules = 5;
  start.billing = 2.5;
  const Accounting accounting{{kSite, {start, accounted(20, {})}}};
  EXPECT_EQ(parse_accounting(format_accounting(accounting), "f"), accounting);
  const test::TempDir folder;
  EXPECT_TRUE(read_accounting(folder / "accounting.json").empty());
}

TEST(AccountingFile, RejectsAnythingElse) {
  for (const char* text :
       {"", "{}", "[]", R"({"schema":2,"facilities":{}})",
        R"({"schema":1,"facilities":{"A b":[]}})", R"({"schema":1,"facilities":{"a":[{}]}})",
        R"({"schema":1,"facilities":{"a":[{"job":"7","state":"S","start":-1,"nodes":1}]}})",
        R"({"schema":1,"facilities":{"a":[{"job":"7","state":"S","start":1,"nodes":1e9}]}})"})
    EXPECT_EQ(test::error_of([&] { parse_accounting(text, "f"); }).kind(), ErrorKind::kCorrupt)
        << text;
}

}  // namespace
}  // namespace xffl::usage
