// Federations of real facilities with cancelled and requeued jobs, walltimes, expired credentials
// and full disks. Each ends as docs/operator/failures.md promises, with the model of an undisturbed
// run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <thread>

#include "e2e/testbed_project.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

using std::chrono::seconds;
using test::await;
using test::Facility;
using test::local_sha256;
using test::TestbedProject;
using testing::HasSubstr;

// After a user's scancel the facility is paused until `xffl resume`; a job that Slurm requeues or
// loses with its node continues automatically.
TEST(TestbedFaults, AUsersScancelPausesTheFacilityAndARequeueDoesNot) {
  TestbedProject project({"--slurm", "SlurmdTimeout=5"});
  NEED_TESTBED(project);
  project.place("brno", placement(project.facility("brno"), "", "nodes: 1, time: 5m, warning: 1m"));
  project.set_hold();
  project.write_config();
  project.hold("brno", 2);
  auto run = project.start_run();
  const Facility &alba = project.facility("alba"), &brno = project.facility("brno");
  const std::string cancelled = project.running_job("alba"), requeued = project.running_job("brno");
  // A job of Slurm runs before its training has begun.
  const auto has_begun = [&](const std::string& training) {
    return await([&] { return std::ranges::count(project.started_trainings(), training) > 0; });
  };
  ASSERT_TRUE(has_begun("alba 1 1") && has_begun("brno 1 1"));
  ASSERT_EQ(alba.exec_on_login({"scancel", cancelled}).exit_code, 0);
  ASSERT_EQ(brno.exec_on_login({"scontrol", "requeue", requeued}).exit_code, 0);
  ASSERT_TRUE(project.await_events("facility_paused", 1));
  EXPECT_THAT(project.status(), HasSubstr("alba is PAUSED"));
  ASSERT_EQ(project.xffl({"resume", "alba", "-p", project.path().string()}).exit_code, 0);
  project.release();
  brno.start_requeued(requeued, 2);
  ASSERT_TRUE(project.await_events("published", 1));
  const std::string lost = project.running_job("brno", requeued);
  ASSERT_FALSE(lost.empty());
  ASSERT_TRUE(has_begun("brno 2 1"));
  const std::string node = brno.exec_on_login({"squeue", "-h", "-j", lost, "-o", "%N"}).out;
  const int number = node.find("brno1") != std::string::npos ? 1 : 2;
  brno.node_down(number);
  ASSERT_TRUE(await([&] {
    const std::string job = brno.exec_on_login({"scontrol", "show", "job", lost}).out;
    return job.find("Restarts=1") != std::string::npos;
  }));
  project.release("brno", 2);
  brno.start_requeued(lost, 1);
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(local_sha256(), "",
                        {"alba 1 2", "alba 2 1", "alba 3 1", "brno 1 1", "brno 2 1", "brno 3 1"},
                        {"alba 1 1", "brno 1 1", "brno 2 1"});
}

// alba's trainer obeys the warning before the walltime, and its partial update counts by its
// tokens. brno's first attempt ignores the warning and ends by its walltime; the second attempt
// trains.
TEST(TestbedFaults, AnObeyedWarningGivesAPartialUpdateAndAnIgnoredOneARetry) {
  test::Project here;
  here.set_rounds(1);
  here.set_fault("alba", "early!");
  here.write_config();
  ASSERT_EQ(here.run().exit_code, 0);
  TestbedProject project;
  NEED_TESTBED(project);
  for (const char* name : {"alba", "brno"})
    project.place(name, placement(project.facility(name), "", "nodes: 2, time: 1m, warning: 15s"));
  project.set_rounds(1);
  project.set_hold();
  project.set_fault("brno", "hang");
  project.write_config();
  project.release("brno");
  auto run = project.start_run();
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(here.current_sha256(), "", {"alba 1 1", "brno 1 2"}, {"brno 1 1"});
  const auto history = project.history();
  const auto& facilities = history.rounds.at(1).facilities;
  const auto& early = facilities.at(FacilityName("alba")).accepted->report;
  EXPECT_TRUE(early.stopped_early);
  EXPECT_EQ(early.steps, 2);
  const history::Attempt& timed_out = facilities.at(FacilityName("brno")).attempts.front();
  EXPECT_THAT(timed_out.failure.value_or(""), HasSubstr("TIMEOUT"));
  EXPECT_FALSE(timed_out.counts_as_attempt);
}

// A certificate expires while jobs run: the facility is paused until it is renewed.
TEST(TestbedFaults, AnExpiredCertificatePausesTheFacilityUntilItsRenewal) {
  TestbedProject project;
  NEED_TESTBED(project);
  const Facility& alba = project.facility("alba");
  Facility certified = alba;
  certified.key = alba.certified_key;
  test::Placement place = test::placement(certified);
  const std::string agent = "agent: false";
  place.yaml.insert(place.yaml.find(agent) + agent.size(), ", renew: 'step ssh login ann'");
  project.place("alba", place);
  project.set_hold();
  project.write_config();
  alba.certify("-1m:+10m");
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2));
  EXPECT_THAT(project.status(), HasSubstr("alba: its certificate ends in "));
  EXPECT_THAT(project.status(), HasSubstr("renew it with: step ssh login ann"));
  alba.certify("-1m:+1s");
  std::this_thread::sleep_for(seconds(2));
  alba.stop_daemon("sshd");  // an open connection outlives its certificate
  alba.start_daemon("sshd");
  project.release();
  ASSERT_TRUE(project.await_status("paused: authentication needed")) << project.status();
  EXPECT_THAT(project.status(), HasSubstr("expired"));
  const ProcessResult resumed = project.xffl({"resume", "alba", "-p", project.path().string()});
  EXPECT_EQ(resumed.exit_code, exit_code(ErrorKind::kAuth)) << resumed.out;
  EXPECT_THAT(resumed.err,
              HasSubstr("alba was not paused by a user: paused: authentication needed"));
  EXPECT_THAT(resumed.err, HasSubstr("renew it with: step ssh login ann"));
  ASSERT_TRUE(project.await_events("update_accepted", 1));  // brno's
  EXPECT_THAT(read_file(project.log(), 1 << 20), HasSubstr("a certificate expires soon"));
  alba.certify("-1m:+10m");
  // The coordinator also notices a new certificate by itself; `xffl login` is faster.
  const ProcessResult login = project.xffl({"login", "alba", "-p", project.path().string()});
  EXPECT_THAT(login.out, HasSubstr("continues")) << login.err;
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(local_sha256());
}

// brno's sshd is down for two rounds: each of them waits one grace time for it. brno leaves, and
// joins again when its sshd is back.
TEST(TestbedFaults, ADeadFacilityCostsOneGraceTimeARoundAndMayLeaveAndJoin) {
  constexpr double kGrace = 2, kClosing = 20;
  TestbedProject project;
  NEED_TESTBED(project);
  project.set_rounds(4);
  project.set_policy("{on_missing: skip, quorum: 1, quorum_grace: 2s, deadline: 1h}");
  project.set_hold();
  project.write_config();
  project.release();
  for (int round = 2; round <= 4; ++round) project.hold("alba", round);
  const Facility& brno = project.facility("brno");
  brno.stop_daemon("sshd");
  auto run = project.start_run();
  const auto ask = [&](const std::string& command) {
    return project.xffl({command, "brno", "-p", project.path().string()}).exit_code;
  };
  ASSERT_TRUE(project.await_events("submitted", 2)) << project.status();  // alba's second
  EXPECT_EQ(ask("leave"), 0);
  project.release("alba", 2);
  ASSERT_TRUE(project.await_events("submitted", 3)) << project.status();
  brno.start_daemon("sshd");
  EXPECT_EQ(ask("join"), 0);
  project.release("alba", 3);
  ASSERT_TRUE(await([&] {
    const auto events = project.events();
    return std::ranges::any_of(events, [](const history::StoredEvent& event) {
      return event.kind == "update_accepted" && event.facility == "brno" && event.round == 4;
    });
  })) << project.status();
  project.release("alba", 4);
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(project.trainings(),
            (std::vector<std::string>{"alba 1 1", "alba 2 1", "alba 3 1", "alba 4 1", "brno 4 1"}));
  std::map<int, Clock::UtcTime> accepted;  // alba's updates, by round
  for (const history::StoredEvent& event : project.events()) {
    const Clock::UtcTime time = parse_utc(event.time_utc).value();
    if (event.kind == "update_accepted" && event.facility == "alba") accepted[event.round] = time;
    if (event.kind != "participants_frozen" || event.round > 2) continue;
    const double waited = std::chrono::duration<double>(time - accepted.at(event.round)).count();
    std::cout << "round " << event.round << " waited " << waited << " s for brno\n";
    EXPECT_GE(waited, kGrace - 0.1) << event.round;
    EXPECT_LE(waited, kGrace + kClosing) << event.round;
  }
  EXPECT_EQ(project.history().rounds.at(3).members.size(), 1u);
  EXPECT_EQ(project.history().rounds.at(4).participants.size(), 2u);
}

// A changed host key pauses the facility until `xffl trust`; the other facility continues.
TEST(TestbedFaults, AChangedHostKeyPausesTheFacilityUntilTrusted) {
  TestbedProject project;
  NEED_TESTBED(project);
  project.set_hold();
  project.write_config();
  const Facility& alba = project.facility("alba");
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2));
  alba.change_host_key();
  project.release();
  ASSERT_TRUE(project.await_events("update_accepted", 1));
  ASSERT_TRUE(project.await_status("HOST KEY CHANGED")) << project.status();
  const std::string key = (alba.folder / "etc/ssh/host_key.pub").string();
  const std::string shown = run_process({.argv = {"ssh-keygen", "-lf", key}}).out;
  const size_t begin = shown.find("SHA256:");
  const std::string fingerprint = shown.substr(begin, shown.find(' ', begin) - begin);
  const ProcessResult trusted =
      project.xffl({"trust", "alba", "--yes", fingerprint, "-p", project.path().string()});
  ASSERT_EQ(trusted.exit_code, 0) << trusted.err;
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(local_sha256());
}

// A facility's disk is full: the run reports it and continues when there is space again.
class TestbedFullDisk : public testing::Test {
 protected:
  TestbedFullDisk() : project_({"--scratch-mb", "2"}) {
    if (!project_.up()) return;
    // The tmpfs is invisible from this machine: the trainer records trainings in the home folder.
    for (const char* name : {"alba", "brno"}) {
      const Facility& facility = project_.facility(name);
      test::Placement place = test::placement(facility);
      place.trainings = facility.home + "/trainings.log";
      place.trainings_here = facility.folder / "home" / facility.user / "trainings.log";
      project_.place(name, place);
    }
    project_.write_config();
  }
  void expect_delay(const std::string& fill, const std::string& clear) {
    const Facility& alba = project_.facility("alba");
    alba.exec_as_user({"sh", "-c", fill});
    auto run = project_.start_run();
    ASSERT_TRUE(project_.await_events("submitted", 1));  // brno's
    ASSERT_TRUE(project_.await_status("pace")) << project_.status();
    alba.exec_as_user({"sh", "-c", clear});
    EXPECT_EQ(run.finish(), 0);
    project_.expect_result(local_sha256());
  }

  TestbedProject project_;
};

TEST_F(TestbedFullDisk, DelaysTheRunUntilThereIsSpace) {
  NEED_TESTBED(project_);
  expect_delay("cp /dev/zero /scratch/filler", "rm /scratch/filler");
}

TEST_F(TestbedFullDisk, WithoutInodesDelaysTheRunUntilThereAreSome) {
  NEED_TESTBED(project_);
  const ProcessResult limited =
      project_.facility("alba").exec_on_login({"mount", "-o", "remount,nr_inodes=200", "/scratch"});
  ASSERT_EQ(limited.exit_code, 0) << limited.err;
  expect_delay("i=0; while : >/scratch/filler$i; do i=$((i + 1)); done 2>/dev/null",
               "rm /scratch/filler*");
}

}  // namespace
}  // namespace xffl
