#include "xffl/usage/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xffl/base/json.h"

namespace xffl::usage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Row row(const std::string& facility, Outcome outcome, std::optional<double> elapsed) {
  Row row;
  row.facility = FacilityName(facility);
  row.round = row.attempt = 1;
  row.job = JobId("4711");
  row.nodes = 2;
  row.gpus = 8;
  row.outcome = outcome;
  row.elapsed = elapsed;
  if (elapsed) row.source = Source::kJob;
  return row;
}

// alba: one hour used, half an hour lost; brno: one start without times.
Ledger ledger() {
  Ledger ledger;
  ledger.rows = {row("alba", Outcome::kUsed, 3600), row("alba", Outcome::kLost, 1800),
                 row("brno", Outcome::kLost, {})};
  return ledger;
}

TEST(UsageText, HasARowForEachFacilityAndTheTotal) {
  EXPECT_EQ(format_text(ledger()),
            "facility  starts  node-hours  GPU-hours  used       lost  idle  evaluation  sources\n"
            "alba           2        3.00       12.0  2.00       1.00     -           -  2 job\n"
            "brno           1   not known  not known     -  not known     -           -  -\n"
            "total          3       3.00+      12.0+  2.00      1.00+     -           -  2 job\n"
            "node-hours: nodes x hours from the begin of a job's script to its end, by the "
            "facility's own clock\n"
            "1 start left no times: its hours are not in the sums (marked +)\n");
  EXPECT_EQ(format_text({}), "No job has been submitted: nothing was used.\n");
}

TEST(UsageText, SaysWhatIsBoundedOrOpen) {
  Ledger some = ledger();
  some.rows[1].source = Source::kBounded;
  some.rows[1].gpus = std::nullopt;
  some.rows[2].outcome = Outcome::kOpen;
  some.clock_anomalies = 2;
  EXPECT_THAT(remarks(some), ElementsAre("1 job has not ended: its hours are not in the sums",
                                         HasSubstr("1 start was killed: it ended up to 15 s after"),
                                         HasSubstr("1 row has no GPU-hours"),
                                         HasSubstr("2 durations were negative")));
}

TEST(UsageJson, BeginsWithItsSchemaAndHasNullForUnknown) {
  const std::string text = format_json(ledger(), "0001");
  const Json json = parse_json(text, "usage");
  EXPECT_EQ(json.begin().key(), "schema");
  EXPECT_EQ(json.at("total").at("node_seconds").at("seconds"), 10800);
  EXPECT_EQ(json.at("total").at("node_seconds").at("unknown_rows"), 1);
  EXPECT_EQ(json.at("facilities").at("alba").at("node_seconds_by_outcome").at("lost").at("seconds"),
            3600);
  EXPECT_TRUE(json.at("rows").at(2).at("elapsed").is_null());
  EXPECT_TRUE(json.at("rows").at(2).at("source").is_null());
}

TEST(UsageCsv, HasALineForEachRow) {
  Ledger some = ledger();
  const std::string text = format_csv(some);
  EXPECT_THAT(text, HasSubstr("facility,round,attempt,job,restart,submit,start,end,nodes,gpus,"
                              "elapsed,outcome,source,clock_offset,clock_error,energy_joules,"
                              "gpu_energy_joules,billing_hours\r\n"
                              "alba,1,1,4711,0,,,,2,8,3600.0,used,job,,,,,\r\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
}

}  // namespace
}  // namespace xffl::usage
