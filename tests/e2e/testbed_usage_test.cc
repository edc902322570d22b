// The ledger of node-hours against the accounting of a real Slurm.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <sstream>

#include "e2e/testbed_project.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

using test::await;
using test::Facility;
using test::TestbedProject;

// Every start of the facility's jobs: sacct --duplicates, "job|state|nodes|seconds|end".
std::vector<std::vector<std::string>> starts_by_sacct(const Facility& facility) {
  std::istringstream rows(
      facility
          .exec_as_user({"sacct", "--duplicates", "-n", "-P", "-X", "-S", "now-1hour",
                         "--format=JobIDRaw,State,NNodes,ElapsedRaw,End"})
          .out);
  std::vector<std::vector<std::string>> all;
  for (std::string row; std::getline(rows, row);) {
    std::istringstream fields(row);
    all.emplace_back();
    for (std::string field; std::getline(fields, field, '|');) all.back().push_back(field);
  }
  return all;
}

double node_seconds_by_sacct(const Facility& facility) {
  double sum = 0;
  for (const auto& row : starts_by_sacct(facility)) sum += std::stod(row[2]) * std::stod(row[3]);
  return sum;
}

Json usage(const TestbedProject& project, const std::string& flag = "--json") {
  const ProcessResult result =
      project.xffl({"usage", "-p", project.path().string(), "--json", flag});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("not known"), std::string::npos) << result.err;
  return parse_json(result.out, "usage");
}

// alba's job of round 1 is requeued, that of round 2 fails and is repeated. `late`: brno's job of
// round 3 never ends, and the coordinator cancels it.
void run_with_incidents(TestbedProject& project, int rounds, bool late) {
  const Facility& alba = project.facility("alba");
  project.set_rounds(rounds);
  project.set_fault("alba", "crash@2");
  project.set_hold();
  project.write_config();
  project.hold("alba", 1);
  if (late) project.hold("brno", 3);
  project.release();
  auto run = project.start_run();
  const std::string requeued = project.running_job("alba");
  ASSERT_FALSE(requeued.empty()) << project.status();
  ASSERT_EQ(alba.exec_as_user({"scontrol", "requeue", requeued}).exit_code, 0);
  alba.start_requeued(requeued, 2);
  project.release("alba", 1);
  ASSERT_EQ(run.finish(), 0);
}

// With the accounting, the ledger has the site's own sum to the second. Without it, each job that
// ended by itself differs by at most 3 s (Slurm counts whole seconds, and the time before and after
// the script), and each other job by a heartbeat of its script more.
void expect_the_sites_sums(const TestbedProject& project,
                           const std::map<std::string, size_t>& num_starts) {
  for (const auto& [name, count] : num_starts) {
    const auto is_complete = [&] {
      const auto rows = starts_by_sacct(project.facility(name));
      for (const auto& row : rows)
        if (row.size() < 5 || row[4] == "Unknown") return false;
      return rows.size() == count;
    };
    ASSERT_TRUE(await(is_complete)) << name;
  }
  const Json before = usage(project);
  const Json after = usage(project, "--accounting");
  for (const auto& [name, count] : num_starts) {
    const double site = node_seconds_by_sacct(project.facility(name));
    const Json& facility = after["facilities"][name];
    EXPECT_EQ(facility["node_seconds"]["seconds"], site) << name;
    EXPECT_EQ(facility["node_seconds"]["unknown_rows"], 0);
    EXPECT_EQ(facility["rows_by_source"]["accounting"], facility["starts"]);
    EXPECT_EQ(facility["starts"], count) << name;
  }
  for (const Json& row : before["rows"]) {
    const auto same = [&](const Json& other) {
      return other["facility"] == row["facility"] && other["job"] == row["job"] &&
             other["restart"] == row["restart"];
    };
    const auto found = std::find_if(after["rows"].begin(), after["rows"].end(), same);
    ASSERT_NE(found, after["rows"].end()) << row.dump();
    EXPECT_EQ((*found)["outcome"], row["outcome"]);
    const double most = row["source"] == "bounded" ? 16 : 3;
    EXPECT_NEAR((*found)["elapsed"].get<double>(), row["elapsed"].get<double>(), most)
        << row.dump();
  }
  EXPECT_EQ(usage(project), after) << "the run folder keeps the answer";
}

// A failed, a requeued and a late job in one run. The grace time is for the late job, and long
// enough for the other two.
TEST(TestbedUsage, LedgerAndReportAgreeWithTheSitesAccounting) {
  TestbedProject project({"--dbd"});
  NEED_TESTBED(project);
  project.set_policy("{on_missing: skip, quorum: 1, quorum_grace: 60s, deadline: 1h}");
  run_with_incidents(project, 3, true);
  expect_the_sites_sums(project, {{"alba", 5}, {"brno", 3}});
  const Json report =
      parse_json(project.xffl({"report", "-p", project.path().string(), "--json"}).out, "report");
  EXPECT_EQ(report["rounds"][0]["participants"].size(), 2u);
  EXPECT_EQ(report["rounds"][1]["participants"].size(), 2u);
  EXPECT_TRUE(report["rounds"][2]["missing"].contains("brno")) << report["rounds"][2].dump();
  const Json ledger = usage(project);
  std::vector<std::string> outcomes;
  for (const Json& row : ledger["rows"]) {
    outcomes.push_back(row["facility"].get<std::string>() + " " + row["round"].dump() + " " +
                       row["outcome"].get<std::string>());
    if (outcomes.back() == "brno 3 lost") {
      EXPECT_GE(row["elapsed"].get<double>(), 60);
    }
  }
  std::sort(outcomes.begin(), outcomes.end());
  EXPECT_EQ(outcomes,
            (std::vector<std::string>{"alba 1 lost", "alba 1 used", "alba 2 lost", "alba 2 used",
                                      "alba 3 used", "brno 1 used", "brno 2 used", "brno 3 lost"}));
  EXPECT_EQ(report["usage"]["total"], ledger["total"]);
  std::vector<std::string> incidents;
  for (const Json& incident : report["incidents"])
    incidents.push_back(incident["facility"].get<std::string>() + " " + incident["round"].dump() +
                        " " + incident["kind"].get<std::string>());
  std::sort(incidents.begin(), incidents.end());
  EXPECT_EQ(incidents,
            (std::vector<std::string>{"alba 1 job requeued", "alba 2 attempt failed",
                                      "brno 3 attempt failed", "brno 3 facility missing"}));
}

// The clocks of both facilities, with all their daemons, are a day ahead of the coordinator's.
TEST(TestbedUsage, TheLedgerAgreesWithAnAccountingOfTomorrow) {
  TestbedProject project({"--dbd", "--clock", "86400"});
  NEED_TESTBED(project);
  for (const char* name : {"alba", "brno"})
    EXPECT_NEAR(std::stod(project.facility(name).exec_as_user({"date", "+%s"}).out),
                static_cast<double>(std::time(nullptr)) + 86400, 10);
  run_with_incidents(project, 2, false);
  expect_the_sites_sums(project, {{"alba", 4}, {"brno", 2}});
  const Json report =
      parse_json(project.xffl({"report", "-p", project.path().string(), "--json"}).out, "report");
  EXPECT_EQ(report["clock_anomalies"], 0);
  for (const Json& attempt : report["attempts"])
    for (const auto& [phase, seconds] : attempt["seconds"].items())
      EXPECT_LT(seconds.get<double>(), 300) << attempt.dump();
}

TEST(TestbedUsage, AFacilityWithoutAccountingIsNamed) {
  TestbedProject project;
  NEED_TESTBED(project);
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  const ProcessResult result =
      project.xffl({"usage", "-p", project.path().string(), "--accounting"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* name : {"alba", "brno"})
    EXPECT_NE(result.err.find(std::string(name) +
                              ": the accounting is not known: the site has no accounting (sacct)"),
              std::string::npos)
        << result.err;
  EXPECT_NE(result.out.find("1 job"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace xffl
