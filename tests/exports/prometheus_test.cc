#include "xffl/exports/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "report/synthetic_run.h"

namespace xffl::exports {
namespace {

using test::SyntheticRun;
using testing::HasSubstr;
using testing::Not;

std::string text_of(const SyntheticRun& run, PrometheusContext context = {}) {
  RunFigures figures;
  for (const history::StoredEvent& event : run.events()) figures.add(history::decode(event));
  context.run = "0001";
  context.version = "0.0.0";
  context.now = *parse_utc("2026-03-02T12:00:00.000Z");
  return figures.format(context);
}

TEST(Prometheus, HasTheFiguresOfARun) {
  SyntheticRun run;
  run.round(1, 2);
  run.plan(2, 2);
  run.open(2, 0);
  run.fail(2, 0, 1, "x");
  run.open(2, 0, 2);
  run.open(2, 1);
  run.accept(2, 1);
  run.add({2, run.name(1), 1}, history::UpdateLost{"damaged"});
  run.add({.facility = run.name(1)}, history::FacilityPaused{"maintenance"});
  run.add({.facility = run.name(0)}, history::FacilityPaused{"maintenance"});
  run.add({.facility = run.name(0)}, history::FacilityResumed{});
  const std::string text = text_of(run, {.has_coordinator = true, .rounds_planned = 5});
  for (const char* line :
       {"xffl_run_info{project=\"test\",run=\"0001\",version=\"0.0.0\"} 1\n",
        "xffl_run_state{state=\"running\"} 1\n", "xffl_run_state{state=\"stopped\"} 0\n",
        "xffl_rounds_published_total 1\n", "xffl_rounds_planned 5\n",
        "xffl_round_duration_seconds 330\n", "xffl_heartbeat_timestamp_seconds 1772452800\n",
        "xffl_facility_state{facility=\"site0\",state=\"submitted\"} 1\n",
        "xffl_facility_state{facility=\"site0\",state=\"failed\"} 0\n",
        "xffl_facility_state{facility=\"site1\",state=\"paused\"} 1\n",
        "xffl_attempts_total{facility=\"site0\",outcome=\"accepted\"} 1\n",
        "xffl_attempts_total{facility=\"site0\",outcome=\"failed\"} 1\n",
        "xffl_attempts_total{facility=\"site1\",outcome=\"accepted\"} 2\n",
        "xffl_attempts_total{facility=\"site1\",outcome=\"lost\"} 1\n",
        "xffl_moved_bytes_total{facility=\"site0\",direction=\"sent\"} 3000000\n",
        "xffl_validation_loss_nats{facility=\"site0\",set=\"it\"} 4\n",
        "xffl_validation_loss_nats{facility=\"site1\",set=\"it\"} 3.1\n",
        "xffl_clock_offset_seconds{facility=\"site0\"} 0\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("credential")));
}

TEST(Prometheus, ShowsFacilitiesThatAreMissingOrHaveLeft) {
  SyntheticRun run(2);
  run.plan(1, 3);
  run.add({1, run.name(0)}, history::FacilityMissing{"no attempts are left"});
  for (const int facility : {1, 2})
    run.add({.facility = run.name(facility)}, history::FacilityLeft{"by a user"});
  run.add({.facility = run.name(2)}, history::FacilityJoined{});
  const std::string text = text_of(run);
  for (const char* labels :
       {"facility=\"site0\",state=\"missing\"", "facility=\"site1\",state=\"left\"",
        "facility=\"site2\",state=\"waiting\""})
    EXPECT_THAT(text, HasSubstr("xffl_facility_state{" + std::string(labels) + "} 1\n"));
}

TEST(Prometheus, CountsAnOpenJobWithItsWholeWalltime) {
  SyntheticRun run(2);
  run.plan(1, 2);
  run.add({1, run.name(0), 1},
          history::SubmitIntended{
              .job_name = "j", .script_sha256 = "s", .nodes = 2, .walltime_s = 100, .keep_s = 0});
  EXPECT_THAT(text_of(run), HasSubstr("xffl_node_seconds{facility=\"site0\"} 200\n"));
}

TEST(Prometheus, ShowsOneStateOfTheRunAndOfEachFacility) {
  SyntheticRun run;
  run.round(1, 3);
  for (const bool has_coordinator : {false, true}) {
    const std::string text = text_of(run, {.has_coordinator = has_coordinator});
    std::map<std::string, int> ones;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.find("_state{") != std::string::npos && line.ends_with(" 1"))
        ++ones[line.substr(0, line.find("state=\""))];
    EXPECT_EQ(ones.size(), 4u);
    for (const auto& [labels, count] : ones) EXPECT_EQ(count, 1) << labels;
  }
}

TEST(Prometheus, ShowsACompletedRunThatContinuesAsRunning) {
  SyntheticRun run;
  run.round(1, 1);
  run.add({}, history::RunCompleted{run.model(1)});
  EXPECT_THAT(text_of(run, {.has_coordinator = true}),
              HasSubstr("xffl_run_state{state=\"completed\"} 1\n"));
  run.plan(2, 1);
  EXPECT_THAT(text_of(run, {.has_coordinator = true}),
              HasSubstr("xffl_run_state{state=\"running\"} 1\n"));
}

TEST(Prometheus, ShowsACancelledRunAsCancelledWhileItsCoordinatorEnds) {
  SyntheticRun run;
  run.round(1, 1);
  run.add({}, history::RunCancelled{});
  const std::string text = text_of(run, {.has_coordinator = true});
  EXPECT_THAT(text, HasSubstr("xffl_run_state{state=\"cancelled\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("xffl_facility_state{facility=\"site0\",state=\"accepted\"} 1\n"));
}

// The heartbeat of a dead or ended run stays where it was.
TEST(Prometheus, HasTheHeartbeatOfACoordinatorOnly) {
  SyntheticRun run;
  run.round(1, 1);
  const std::string last = "\nxffl_last_event_timestamp_seconds ";
  const std::string dead = text_of(run);
  const size_t at = dead.find(last) + last.size();
  const std::string time = dead.substr(at, dead.find('\n', at) - at);
  EXPECT_THAT(dead, HasSubstr("xffl_heartbeat_timestamp_seconds " + time + "\n"));
  EXPECT_THAT(text_of(run, {.has_coordinator = true}),
              Not(HasSubstr("xffl_heartbeat_timestamp_seconds " + time + "\n")));
}

TEST(Prometheus, GivesEachMetricOneHelpAndKeepsItsSamplesTogether) {
  SyntheticRun run;
  run.round(1, 3);
  std::istringstream lines(text_of(run));
  std::map<std::string, int> helps;
  std::string metric;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name;
    words >> hash >> kind >> name;
    if (hash != "#") {
      EXPECT_EQ(line.substr(0, line.find_first_of("{ ")), metric);
      continue;
    }
    metric = name;
    if (kind == "HELP") {
      EXPECT_EQ(++helps[name], 1);
    }
  }
  EXPECT_GE(helps.size(), 10u);
}

TEST(Prometheus, EscapesLabels) {
  SyntheticRun run;
  run.plan(1, 1);
  run.open(1, 0);
  run.accept(1, 0, 1, "it");
  EXPECT_THAT(text_of(run, {.version = ""}), HasSubstr("version=\"0.0.0\""));
  RunFigures figures;
  const std::string text = figures.format({.run = "a\"b\\c\nd", .version = ""});
  EXPECT_THAT(text, HasSubstr("run=\"a\\\"b\\\\c\\nd\""));
}

}  // namespace
}  // namespace xffl::exports
