// Federations of real facilities whose Slurm rejects, holds, duplicates or cannot launch jobs, or
// reports other results than the jobs' own. Only a verified report is success.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <thread>

#include "e2e/run_with_stop.h"
#include "e2e/testbed_project.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using test::await;
using test::Facility;
using test::local_sha256;
using test::RunWithStop;
using test::TestbedProject;
using testing::HasSubstr;

const history::FacilityState& state_of(const history::RunState& run, int round,
                                       const std::string& facility) {
  return run.rounds.at(round).facilities.at(FacilityName(facility));
}

int num_submitted(const TestbedProject& project, const std::string& facility, int round) {
  const auto events = project.events();
  return static_cast<int>(std::count_if(events.begin(), events.end(), [&](const auto& event) {
    return event.kind == "submitted" && event.facility == facility && event.round == round;
  }));
}

int count_in(const fs::path& log, const std::string& text) {
  std::ifstream lines(log);
  int count = 0;
  for (std::string line; std::getline(lines, line);) count += line.find(text) != std::string::npos;
  return count;
}

// alba: exit 0 without output; exit 0 with a truncated update; a report and SIGKILL. brno: each
// job reports and exits with 9.
TEST(TestbedSlurmFaults, OnlyAVerifiedReportIsSuccess) {
  const auto change = [](test::Project& project) {
    project.set_policy("{on_missing: skip, deadline: 1h, poll_interval: 300ms}");
    project.set_fault("alba", "silent@1,truncate@2,killed@3!");
    project.set_fault("brno", "failing!");
  };
  TestbedProject project;
  NEED_TESTBED(project);
  change(project);
  project.write_config();
  EXPECT_EQ(project.run().exit_code, 0);
  project.expect_result(local_sha256(change), "",
                        {"alba 1 2", "alba 2 1", "alba 3 1", "brno 1 1", "brno 2 1", "brno 3 1"},
                        {"alba 1 1"});
  const auto history = project.history();
  const auto& silent = state_of(history, 1, "alba");
  ASSERT_EQ(silent.attempts.size(), 2u);
  EXPECT_THAT(silent.attempts[0].failure.value_or(""),
              HasSubstr("ended without a report (COMPLETED)"));
  EXPECT_TRUE(silent.accepted.has_value());
  EXPECT_FALSE(state_of(history, 2, "alba").accepted.has_value());
  EXPECT_THAT(state_of(history, 2, "alba").missing.value_or(""), HasSubstr("rejected"));
  EXPECT_TRUE(state_of(history, 3, "alba").accepted.has_value());
  // Slurm's view: three failures at brno, all of them with an accepted update.
  const Facility &alba = project.facility("alba"), &brno = project.facility("brno");
  EXPECT_EQ(count_in(brno.folder / "log/jobcomp.txt", "JobState=FAILED"), 3);
  EXPECT_EQ(count_in(alba.folder / "log/jobcomp.txt", "JobState=COMPLETED"), 3);
}

// alba's partition disappears after the first round: one submission, Slurm's text, and a place in
// the next round.
TEST(TestbedSlurmFaults, ARejectedSubmissionIsNotRepeated) {
  TestbedProject project;
  NEED_TESTBED(project);
  const Facility& alba = project.facility("alba");
  project.place("alba", placement(alba, "", "nodes: 1, time: 5m, warning: 1m, partition: debug"));
  project.set_policy("{on_missing: skip, deadline: 1h, poll_interval: 300ms}");
  project.set_hold();
  project.write_config();
  project.release();
  project.hold("brno", 2);
  const std::string controller = (alba.folder / "log/slurmctld.log").string();
  RunWithStop run(project, "pushed", 2, [&] {
    EXPECT_EQ(alba.exec_on_login({"scontrol", "delete", "PartitionName=debug"}).exit_code, 0);
  });
  ASSERT_TRUE(project.await_events("facility_missing", 1)) << project.status();
  std::this_thread::sleep_for(seconds(6));  // beyond the first pause of a repetition
  EXPECT_THAT(project.status(), HasSubstr("invalid partition"));
  EXPECT_EQ(count_in(controller, "invalid partition specified: debug"), 1);
  EXPECT_EQ(num_submitted(project, "alba", 2), 0);
  EXPECT_EQ(
      alba.exec_on_login({"scontrol", "create", "PartitionName=debug", "Nodes=alba1"}).exit_code,
      0);
  project.release("brno", 2);
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(project.trainings(),
            (std::vector<std::string>{"alba 1 1", "alba 3 1", "brno 1 1", "brno 2 1", "brno 3 1"}));
  EXPECT_THAT(state_of(project.history(), 2, "alba").missing.value_or(""),
              HasSubstr("invalid partition"));
}

// The job ends while no coordinator runs, and only the accounting still knows its end. The test
// writes the state OUT_OF_MEMORY: without cgroups Slurm records FAILED.
TEST(TestbedSlurmFaults, AJobThatRanOutOfMemoryIsNotRetried) {
  TestbedProject project({"--min-job-age", "2", "--dbd"});
  NEED_TESTBED(project);
  const Facility& alba = project.facility("alba");
  project.set_rounds(1);
  project.set_policy("{on_missing: fail, poll_interval: 300ms}");
  project.set_fault("alba", "crash!");
  project.set_hold();
  project.write_config();
  auto run = project.start_run();
  const std::string job = project.running_job("alba");
  ASSERT_FALSE(job.empty()) << project.status();
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(), exit_code(ErrorKind::kCancelled));
  project.release();
  const auto sacct = [&] {
    return alba
        .exec_as_user(
            {"sacct", "-n", "-P", "-X", "-j", job, "--format=State,End", "-S", "now-1hour"})
        .out;
  };
  const auto squeue = [&] {
    return alba.exec_as_user({"squeue", "--me", "--noheader", "--states=all"}).out;
  };
  ASSERT_TRUE(await([&] {
    const std::string ended = sacct();  // "FAILED|2026-03-01T12:34:56"
    return ended.starts_with("FAILED|2") && squeue().empty();
  })) << sacct()
      << squeue();
  const ProcessResult written =
      alba.exec_on_login({"mariadb", "-S", "/run/mysqld/mysqld.sock", "-e",
                          "update slurm_acct.alba_job_table set state=11 where id_job=" + job});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_EQ(project.run().exit_code, exit_code(ErrorKind::kFailed));
  EXPECT_THAT(project.status(), HasSubstr("ran out of memory"));
  EXPECT_EQ(project.jobs("alba"), std::vector<std::string>{job});
  EXPECT_EQ(num_submitted(project, "alba", 1), 1);
}

constexpr const char* kIn90Days = "nodes: 2, time: 5m, warning: 1m, extra: ['--begin=now+90days']";

// The time of the first event of `kind` in the first round, by the journal's clock.
Clock::UtcTime time_of(const TestbedProject& project, const std::string& kind) {
  for (const history::StoredEvent& event : project.events())
    if (event.kind == kind && event.round == 1) return parse_utc(event.time_utc).value();
  ADD_FAILURE() << "no event " << kind;
  return {};
}

double seconds_between(Clock::UtcTime from, Clock::UtcTime to) {
  return std::chrono::duration<double>(to - from).count();
}

// alba's job would start in 90 days, and is then held: both are shown. The next coordinator has a
// deadline, which decides.
TEST(TestbedSlurmFaults, AHeldJobIsShownAndTheDeadlineDecides) {
  constexpr double kDeadline = 5, kLate = 20;
  TestbedProject project;
  NEED_TESTBED(project);
  const Facility& alba = project.facility("alba");
  project.place("alba", placement(alba, "", kIn90Days));
  project.set_rounds(1);
  project.set_policy("{on_missing: skip, deadline: 1d, poll_interval: 300ms}");
  project.write_config();
  auto run = project.start_run();
  EXPECT_TRUE(project.await_status("pending (BeginTime), starts in 2159 h")) << project.status();
  ASSERT_EQ(alba.exec_on_login({"scontrol", "hold", project.jobs("alba").at(0)}).exit_code, 0);
  EXPECT_TRUE(project.await_status("held (JobHeldAdmin)")) << project.status();
  ASSERT_TRUE(project.await_events("update_accepted", 1)) << "brno's";
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(), exit_code(ErrorKind::kCancelled));
  project.set_policy("{on_missing: skip, deadline: 5s, poll_interval: 300ms}");
  project.write_config();
  const Clock::UtcTime restarted = SystemClock().utc();
  EXPECT_EQ(project.run().exit_code, 0);
  const Clock::UtcTime submitted = time_of(project, "submitted");
  const double took = seconds_between(submitted, time_of(project, "published"));
  const double restart = seconds_between(submitted, restarted);
  std::cout << "published " << took << " s after the submission, " << took - restart
            << " s after the restart\n";
  EXPECT_GT(took, kDeadline);
  EXPECT_LT(took, std::max(kDeadline, restart) + kLate);
  EXPECT_THAT(state_of(project.history(), 1, "alba").missing.value_or(""),
              HasSubstr("the round's deadline of 5 s"));
  EXPECT_EQ(project.trainings(), std::vector<std::string>{"brno 1 1"});
  EXPECT_TRUE(await([&] { return project.jobs_left("alba").empty(); })) << "cancelled";
}

// The same job with a quorum: the round closes one grace time after brno's update.
TEST(TestbedSlurmFaults, AQuorumClosesARoundWithoutAJobThatWaitsForMonths) {
  TestbedProject project;
  NEED_TESTBED(project);
  project.place("alba", placement(project.facility("alba"), "", kIn90Days));
  project.set_rounds(1);
  project.set_policy(
      "{on_missing: skip, deadline: 1d, quorum: 1, quorum_grace: 5s, poll_interval: 300ms}");
  project.write_config();
  EXPECT_EQ(project.run().exit_code, 0);
  const double took =
      seconds_between(time_of(project, "update_accepted"), time_of(project, "published"));
  std::cout << "published " << took << " s after the quorum\n";
  EXPECT_GE(took, 5);
  EXPECT_LT(took, 5 + 20);
  EXPECT_EQ(project.trainings(), std::vector<std::string>{"brno 1 1"});
  EXPECT_TRUE(await([&] { return project.jobs_left("alba").empty(); })) << "cancelled";
}

// Two jobs of one attempt, submitted by hand: the coordinator adopts the first one and cancels the
// other one while the first one trains.
TEST(TestbedSlurmFaults, OfTwoJobsOneIsAdoptedAndTheOtherOneCancelled) {
  TestbedProject project;
  NEED_TESTBED(project);
  const Facility& alba = project.facility("alba");
  project.set_hold();
  project.write_config();
  {
    auto killed = project.start_run({{"XFFL_FAILPOINT", "journal:stop:submit_intended"}});
    for (;;) {
      ASSERT_TRUE(killed.await_stop());
      if (project.events().back().facility == "alba") break;
      killed.signal(SIGCONT);
    }
  }
  std::string script;
  for (const auto& entry : fs::recursive_directory_iterator(project.run_folder() / "r0001/alba"))
    if (entry.path().filename() == "job.sh") script = read_file(entry.path(), 1 << 20);
  ASSERT_NE(script, "");
  std::vector<std::string> twins;
  for (int i = 0; i < 2; ++i) {
    const ProcessResult answer = alba.exec_as_user({"sbatch", "--parsable"}, script);
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    twins.push_back(answer.out.substr(0, answer.out.find('\n')));
  }
  auto run = project.start_run();
  ASSERT_TRUE(project.await_held_training("alba"));
  const auto state = [&](const std::string& job) {
    return alba.exec_as_user({"squeue", "-h", "-t", "all", "-j", job, "-o", "%T"}).out;
  };
  EXPECT_TRUE(await([&] { return state(twins[1]) == "CANCELLED\n"; })) << state(twins[1]);
  EXPECT_EQ(state(twins[0]), "RUNNING\n");
  EXPECT_EQ(project.jobs("alba"), std::vector{twins[0]});
  project.release();
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(local_sha256());
  EXPECT_EQ(count_in(alba.folder / "log/jobcomp.txt", "JobId="), 4) << "three jobs and the twin";
}

// A node cannot start the script: Slurm holds the job, and only an administrator would release it.
// The coordinator cancels the held job, and another attempt trains.
class TestbedLaunch : public testing::Test {
 protected:
  TestbedLaunch() : project_({"--slurm", "Prolog=/scratch/prolog.sh"}) {
    if (!project_.up()) return;
    for (const char* name : {"alba", "brno"}) {
      const fs::path prolog = project_.facility(name).folder / "scratch/prolog.sh";
      write_file_atomic(prolog, "#!/bin/sh\n[ ! -e /scratch/prolog-fails ]\n");
      fs::permissions(prolog, fs::perms(0755));
    }
    project_.set_rounds(1);
    project_.write_config();
  }
  const Facility& alba() const { return project_.facility("alba"); }
  std::string nodes(const std::string& script) const {
    return alba()
        .exec_on_login(
            {"sh", "-c",
             "for n in 1 2; do nsenter -t $(cat /run/xffl/node$n.pid) -m -p " + script + "; done"})
        .err;
  }
  void expect_another_attempt(test::StartedRun& run) {
    ASSERT_TRUE(project_.await_events("attempt_failed", 1)) << project_.status();
    mend();
    alba().exec_on_login({"scontrol", "update", "NodeName=alba1", "State=RESUME"});
    alba().exec_on_login({"scontrol", "update", "NodeName=alba2", "State=RESUME"});
    EXPECT_EQ(run.finish(), 0);
    const auto attempts = state_of(project_.history(), 1, "alba").attempts;
    ASSERT_GE(attempts.size(), 2u);
    for (size_t i = 0; i + 1 < attempts.size(); ++i) {
      EXPECT_THAT(attempts[i].failure.value_or(""), HasSubstr("launch failed requeued held"));
      EXPECT_FALSE(attempts[i].counts_as_attempt);
    }
    const std::string last = "alba 1 " + std::to_string(attempts.back().number);
    project_.expect_result(local_sha256([](test::Project& here) { here.set_rounds(1); }), "",
                           {last, "brno 1 1"});
  }

  TestbedProject project_;
  std::function<void()> mend;
};

TEST_F(TestbedLaunch, AFailedPrologCostsAnAttempt) {
  NEED_TESTBED(project_);
  const fs::path failing = alba().folder / "scratch/prolog-fails";
  write_file_atomic(failing, "");
  mend = [&] { fs::remove(failing); };
  auto run = project_.start_run();
  expect_another_attempt(run);
}

TEST_F(TestbedLaunch, AFullSpoolFolderCostsAnAttempt) {
  NEED_TESTBED(project_);
  EXPECT_EQ(nodes("mount -t tmpfs -o size=4k,nr_inodes=2 full /var/spool/slurmd"), "");
  mend = [&] { EXPECT_EQ(nodes("umount -l /var/spool/slurmd"), ""); };
  auto run = project_.start_run();
  expect_another_attempt(run);
}

}  // namespace
}  // namespace xffl
