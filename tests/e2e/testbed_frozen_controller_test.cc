// Federations of real facilities whose slurmctld is frozen (SIGSTOP) or killed (SIGKILL) at a
// chosen journal record: during a submission, and during a cancellation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "e2e/testbed_project.h"

namespace xffl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Facility;
using test::TestbedProject;

int from_environment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// Slurm's commands fail after MessageTimeout; a job may appear up to the same time later.
const std::vector<std::string> kFlavours = {"--slurm", "MessageTimeout=2"};
test::Placement patient(const Facility& facility) {
  test::Placement place = test::placement(facility);
  const std::string usual = "settle_time: 2s";
  place.yaml.replace(place.yaml.find(usual), usual.size(), "settle_time: 4s");
  return place;
}

// The trainings as "facility round", without the attempts.
std::vector<std::string> rounds_of(std::vector<std::string> trainings) {
  for (std::string& line : trainings) line.resize(line.rfind(' '));
  std::sort(trainings.begin(), trainings.end());
  return trainings;
}

std::vector<std::string> once_each(int rounds) {
  std::vector<std::string> lines;
  for (const std::string facility : {"alba", "brno"})
    for (int round = 1; round <= rounds; ++round)
      lines.push_back(facility + " " + std::to_string(round));
  std::sort(lines.begin(), lines.end());
  return lines;
}

// The trainings that have begun beside those with a report; each belongs to a failed attempt.
std::vector<std::string> lost_trainings(const TestbedProject& project) {
  std::vector<std::string> lost;
  const std::vector<std::string> started = project.started_trainings();
  const std::vector<std::string> reported = project.trainings();
  std::set_difference(started.begin(), started.end(), reported.begin(), reported.end(),
                      std::back_inserter(lost));
  std::set<std::string> failed;
  for (const history::StoredEvent& event : project.events())
    if (event.kind == "attempt_failed")
      failed.insert(event.facility + " " + std::to_string(event.round) + " " +
                    std::to_string(event.attempt));
  for (const std::string& line : lost)
    EXPECT_TRUE(failed.contains(line)) << line << " has begun twice";
  return lost;
}

// A disturbance of a controller that ends after `length` at the latest.
struct Disturbance {
  int signal = SIGSTOP;    // or SIGKILL
  milliseconds later{0};   // after the record of the intent; 0: before sbatch
  milliseconds length{0};  // shorter when the submission's outcome is recorded before: the job's
                           // first steps are not disturbed
};

void begin(const Facility& facility, const Disturbance& disturbance) {
  if (disturbance.signal == SIGKILL)
    facility.stop_daemon("slurmctld", "KILL");
  else
    facility.signal_daemon("slurmctld", disturbance.signal);
}

void run_disturbance(const TestbedProject& project, const history::StoredEvent& intent,
                     const Disturbance& disturbance) {
  const Facility& facility = project.facility(intent.facility);
  const auto answered = [&] {
    for (const history::StoredEvent& event : project.events())
      if (event.seq > intent.seq && event.facility == intent.facility && event.kind == "submitted")
        return true;
    return false;
  };
  std::this_thread::sleep_for(disturbance.later);
  if (disturbance.later.count() > 0) begin(facility, disturbance);
  const auto ends = std::chrono::steady_clock::now() + disturbance.length;
  while (std::chrono::steady_clock::now() < ends && !answered())
    std::this_thread::sleep_for(milliseconds(50));
  if (disturbance.signal == SIGKILL)
    facility.start_daemon("slurmctld");
  else
    facility.signal_daemon("slurmctld", SIGCONT);
}

// A killed controller may forget a job and reuse its id. The node that runs the first job rejects
// the second one; Slurm drains the node and holds the job. This is the administrator, who resumes
// the node and releases the job.
void look_after(const Facility& facility) {
  const std::string nodes = "NodeName=" + facility.name + "[1-2]";
  facility.exec_on_login({"scontrol", "update", nodes, "State=RESUME"});
  std::istringstream held(
      facility.exec_on_login({"squeue", "--noheader", "--format=%A %r", "--states=PD"}).out);
  for (std::string id, reason; held >> id && std::getline(held, reason);)
    if (reason.find("held") != std::string::npos)
      facility.exec_on_login({"scontrol", "release", id});
}

/// Disturbs every submission (SIGSTOP), or each facility's first submission of a round (SIGKILL: a
/// forgotten job is submitted again). Returns the number of disturbances.
int disturb_submissions(const TestbedProject& project, test::StartedRun& run, int signal) {
  std::mt19937 random(static_cast<unsigned>(from_environment("XFFL_CAMPAIGN_SEED", 3)));
  std::map<std::string, std::jthread> disturbances;  // at most one per facility at a time
  std::set<std::pair<std::string, int>> killed;
  int number = 0;
  while (run.await_stop(seconds(600))) {
    const history::StoredEvent intent = project.events().back();
    EXPECT_EQ(intent.kind, "submit_intended");
    if (signal == SIGSTOP || killed.emplace(intent.facility, intent.round).second) {
      const Disturbance disturbance{signal,
                                    milliseconds(++number % 2 != 0 ? 0 : 1 + random() % 150),
                                    milliseconds(random() % 6000)};
      disturbances[intent.facility] = {};  // joins the last disturbance
      if (disturbance.later.count() == 0) begin(project.facility(intent.facility), disturbance);
      disturbances[intent.facility] = std::jthread(
          [&project, intent, disturbance] { run_disturbance(project, intent, disturbance); });
    }
    run.signal(SIGCONT);
  }
  return number;
}

// The controller is frozen or killed when the journal records the intent of a submission: at once,
// or a little later, during sbatch or after it. It continues at a random time; a killed controller
// may have forgotten the job. XFFL_CAMPAIGN is the number of submissions.
void expect_one_training_each(int signal, int submissions) {
  const int rounds = (from_environment("XFFL_CAMPAIGN", submissions) + 1) / 2;
  TestbedProject project(kFlavours);
  NEED_TESTBED(project);
  const std::string expected =
      test::local_sha256([&](test::Project& local) { local.set_rounds(rounds); });
  for (const char* name : {"alba", "brno"}) project.place(name, patient(project.facility(name)));
  project.set_rounds(rounds);
  project.write_config();
  std::jthread administrator([&](std::stop_token stop) {
    while (signal == SIGKILL && !stop.stop_requested()) {
      for (const char* name : {"alba", "brno"}) look_after(project.facility(name));
      std::this_thread::sleep_for(seconds(3));
    }
  });
  auto run = project.start_run({{"XFFL_FAILPOINT", "journal:stop:submit_intended"}});
  const int disturbed = disturb_submissions(project, run, signal);
  EXPECT_EQ(run.finish(), 0);
  EXPECT_GE(disturbed, 2 * rounds);
  EXPECT_EQ(rounds_of(project.trainings()), once_each(rounds));
  // A killed controller may have forgotten a job's end and learns it from the node later.
  for (const char* name : {"alba", "brno"})
    if (signal == SIGKILL)
      test::await([&] { return project.jobs_left(name).empty(); }, seconds(300));
  project.expect_result(expected, "", project.trainings(),
                        signal == SIGKILL ? lost_trainings(project) : std::vector<std::string>());
  int adopted = 0;
  for (const history::StoredEvent& event : project.events())
    adopted += event.payload.find("\"adopted\":true") != std::string::npos;
  std::cout << disturbed << " submissions: slurmctld " << (signal == SIGKILL ? "killed" : "frozen")
            << " in each, " << adopted << " jobs adopted, "
            << project.count_events("attempt_failed") << " lost, each trained once\n";
}

TEST(TestbedFrozenController, EverySubmissionToAFrozenControllerTrainsOnce) {
  expect_one_training_each(SIGSTOP, 4);
}

TEST(TestbedFrozenController, EverySubmissionToAKilledControllerTrainsOnce) {
  expect_one_training_each(SIGKILL, 4);
}

// The controller is frozen when the journal records the intent to cancel brno's job. The failed
// cancellation is reported, and repeated until the job has ended.
TEST(TestbedFrozenController, AFailedCancellationIsRepeated) {
  TestbedProject project(kFlavours);
  NEED_TESTBED(project);
  for (const char* name : {"alba", "brno"}) project.place(name, patient(project.facility(name)));
  project.set_hold();
  project.write_config();
  const Facility& brno = project.facility("brno");
  auto run = project.start_run({{"XFFL_FAILPOINT", "journal:stop:cancel_intended"}});
  ASSERT_TRUE(project.await_events("submitted", 2));
  const std::string job = project.running_job("brno");
  ASSERT_FALSE(job.empty());
  const std::vector<std::string> argv = {"cancel", "-p", project.path().string()};
  auto cancelled =
      std::async(std::launch::async, [&] { return project.xffl(argv, {}, seconds(170)); });
  for (int stops = 0; stops < 2; ++stops) {
    ASSERT_TRUE(run.await_stop()) << "cancel_intended " << stops;
    if (project.events().back().facility == "brno") brno.signal_daemon("slurmctld", SIGSTOP);
    run.signal(SIGCONT);
  }
  const ProcessResult unheard = cancelled.get();
  EXPECT_NE(unheard.exit_code, 0);
  EXPECT_THAT(unheard.err, testing::HasSubstr("brno"));
  run.finish(seconds(60));
  EXPECT_EQ(project.count_events("cancel_intended"), 2);
  EXPECT_EQ(project.count_events("cancel_confirmed"), 1);
  EXPECT_EQ(project.count_events("run_cancelled"), 0);
  brno.signal_daemon("slurmctld", SIGCONT);
  const ProcessResult repeated = project.xffl(argv, {}, seconds(120));
  EXPECT_EQ(repeated.exit_code, 0) << repeated.err;
  EXPECT_EQ(project.count_events("cancel_confirmed"), 2);
  EXPECT_EQ(project.count_events("run_cancelled"), 1);
  const std::string left = brno.exec_on_login({"squeue", "-h", "-t", "R,PD", "-o", "%A"}).out;
  EXPECT_EQ(left, "") << "it was confirmed that there is none";
  project.release();
  EXPECT_TRUE(project.trainings().empty());
}

}  // namespace
}  // namespace xffl
