// Federations of real facilities whose slurmctld answers nothing (SIGSTOP), or dies (SIGKILL), from
// a chosen journal record on: while it is told of a job, and while it is told to end one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <future>
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

// Slurm's commands give up after MessageTimeout; a job may appear as long after that.
const std::vector<std::string> kFlavours = {"--slurm", "MessageTimeout=2"};
test::Placement patient(const Facility& facility) {
  test::Placement place = test::placement(facility);
  const std::string usual = "settle_time: 2s";
  place.yaml.replace(place.yaml.find(usual), usual.size(), "settle_time: 4s");
  return place;
}

// "facility round" of trainings, without their attempts.
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

// What happens to a controller, and is over after `length` at the latest.
struct Trouble {
  int signal = SIGSTOP;    // or SIGKILL
  milliseconds later{0};   // after the record of the intent; 0: before anything is sent
  milliseconds length{0};  // one that has answered already goes on at once: it is the submission
                           // that is disturbed, not the job's first steps
};

void begin(const Facility& facility, const Trouble& trouble) {
  if (trouble.signal == SIGKILL)
    facility.stop_daemon("slurmctld", "KILL");
  else
    facility.signal_daemon("slurmctld", trouble.signal);
}

void see_through(const TestbedProject& project, const history::StoredEvent& intent,
                 const Trouble& trouble) {
  const Facility& facility = project.facility(intent.facility);
  const auto answered = [&] {
    for (const history::StoredEvent& event : project.events())
      if (event.seq > intent.seq && event.facility == intent.facility && event.kind == "submitted")
        return true;
    return false;
  };
  std::this_thread::sleep_for(trouble.later);
  if (trouble.later.count() > 0) begin(facility, trouble);
  const auto ends = std::chrono::steady_clock::now() + trouble.length;
  while (std::chrono::steady_clock::now() < ends && !answered())
    std::this_thread::sleep_for(milliseconds(50));
  if (trouble.signal == SIGKILL)
    facility.start_daemon("slurmctld");
  else
    facility.signal_daemon("slurmctld", SIGCONT);
}

// A controller that was killed gives the id of a job that it forgot to another one. The node that
// still knows the first refuses it and is drained, and the job is held, until an administrator
// resumes the one and releases the other.
void look_after(const Facility& facility) {
  const std::string nodes = "NodeName=" + facility.name + "[1-2]";
  facility.exec_on_login({"scontrol", "update", nodes, "State=RESUME"});
  std::istringstream held(
      facility.exec_on_login({"squeue", "--noheader", "--format=%A %r", "--states=PD"}).out);
  for (std::string id, reason; held >> id && std::getline(held, reason);)
    if (reason.find("held") != std::string::npos)
      facility.exec_on_login({"scontrol", "release", id});
}

/// Trouble for every submission (SIGSTOP), or for the first one of a facility's round (SIGKILL:
/// what is forgotten is submitted again). Returns their number.
int trouble_submissions(const TestbedProject& project, test::StartedRun& run, int signal) {
  std::mt19937 random(static_cast<unsigned>(from_environment("XFFL_CAMPAIGN_SEED", 3)));
  std::map<std::string, std::jthread> troubles;  // by facility: one at a time
  std::set<std::pair<std::string, int>> killed;
  int number = 0;
  while (run.await_stop(seconds(600))) {
    const history::StoredEvent intent = project.events().back();
    EXPECT_EQ(intent.kind, "submit_intended");
    if (signal == SIGSTOP || killed.emplace(intent.facility, intent.round).second) {
      const Trouble trouble{signal, milliseconds(++number % 2 != 0 ? 0 : 1 + random() % 150),
                            milliseconds(random() % 6000)};
      troubles[intent.facility] = {};  // the last one is over
      if (trouble.later.count() == 0) begin(project.facility(intent.facility), trouble);
      troubles[intent.facility] =
          std::jthread([&project, intent, trouble] { see_through(project, intent, trouble); });
    }
    run.signal(SIGCONT);
  }
  return number;
}

// The controller freezes or dies when the journal says that a submission is intended: at that
// moment, or a little later, in the midst of sbatch or after it; and goes on at any time. One that
// was killed may have forgotten what it answered. XFFL_CAMPAIGN is the number of submissions.
void expect_one_training_each(int signal, int submissions) {
  const int rounds = (from_environment("XFFL_CAMPAIGN", submissions) + 1) / 2;
  test::Project here;
  here.set_rounds(rounds);
  here.write_config();
  ASSERT_EQ(here.run().exit_code, 0);
  TestbedProject project(kFlavours);
  NEED_TESTBED(project);
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
  const int disturbed = trouble_submissions(project, run, signal);
  EXPECT_EQ(run.finish(seconds(10)), 0);
  EXPECT_GE(disturbed, 2 * rounds);
  EXPECT_EQ(rounds_of(project.trainings()), once_each(rounds));
  // One that was killed may have forgotten a job's end, and hears of it from the node, by and by.
  for (const char* name : {"alba", "brno"})
    if (signal == SIGKILL)
      test::await([&] { return project.jobs_left(name).empty(); }, seconds(300));
  project.expect_result(here.current_sha256(), "", project.trainings());
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

TEST(TestbedFrozenController, EverySubmissionToAControllerThatIsKilledTrainsOnce) {
  expect_one_training_each(SIGKILL, 4);
}

// The controller freezes when the journal says that brno's job is to be cancelled: that it could
// not be told is said, and stays on record until it is seen to have ended.
TEST(TestbedFrozenController, ACancellationThatIsNotHeardIsRepeated) {
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
  const std::vector<std::string> words = {"cancel", "-p", project.path().string()};
  auto cancelled =
      std::async(std::launch::async, [&] { return project.xffl(words, {}, seconds(170)); });
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
  const ProcessResult heard = project.xffl(words, {}, seconds(120));
  EXPECT_EQ(heard.exit_code, 0) << heard.err;
  EXPECT_EQ(project.count_events("cancel_confirmed"), 2);
  EXPECT_EQ(project.count_events("run_cancelled"), 1);
  const std::string left = brno.exec_on_login({"squeue", "-h", "-t", "R,PD", "-o", "%A"}).out;
  EXPECT_EQ(left, "") << "it was confirmed that there is none";
  project.release();
  EXPECT_TRUE(project.trainings().empty());
}

}  // namespace
}  // namespace xffl
