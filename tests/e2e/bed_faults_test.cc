// Federations of real facilities where people and machines interfere: each ends as
// docs/operating.md promises, with the model of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "e2e/bed_project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

using std::chrono::seconds;
using test::BedProject;
using test::Facility;
using testing::HasSubstr;

#define NEED(project) \
  if (!(project).up()) GTEST_SKIP() << (project).why_not()

std::string local_sha256() {
  test::Project project;
  EXPECT_EQ(project.run().exit_code, 0);
  return project.current_sha256();
}

int finish(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool await(const std::function<bool()>& what, seconds patience = seconds(60)) {
  const auto ends = std::chrono::steady_clock::now() + patience;
  while (!what() && std::chrono::steady_clock::now() < ends)
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return what();
}

// The newest job of a facility, once its script has begun.
std::string running_job(const Facility& facility) {
  std::string id;
  await([&] {
    id = facility.exec_on_login({"squeue", "-h", "-t", "R", "-o", "%A"}).out;
    if (!id.empty()) id.pop_back();
    return !id.empty() && facility.exec_on_login({"grep", "-rqs", "^" + id + " ",
                                                  facility.scratch + "/work", "--include=owner"})
                                  .exit_code == 0;
  });
  return id;
}

// Jobs that a person cancels wait for a person; those that Slurm requeues or loses with a node go
// on by themselves.
TEST(BedFaults, JobsThatPeopleCancelAndSlurmRequeues) {
  BedProject project({"--slurm", "SlurmdTimeout=5"});
  NEED(project);
  const std::string expected = local_sha256();
  project.set_training_time(6000);
  project.write_config();
  const pid_t pid = project.start_run();
  const Facility &alba = project.facility("alba"), &brno = project.facility("brno");
  const std::string cancelled = running_job(alba), requeued = running_job(brno);
  EXPECT_EQ(alba.exec_on_login({"scancel", cancelled}).exit_code, 0);
  EXPECT_EQ(brno.exec_on_login({"scontrol", "requeue", requeued}).exit_code, 0);
  ASSERT_TRUE(project.await_events("facility_paused", 1));
  EXPECT_THAT(project.xffl({"status", "-p", project.path().string()}).out,
              HasSubstr("alba is PAUSED"));
  ASSERT_EQ(project.xffl({"resume", "alba", "-p", project.path().string()}).exit_code, 0);
  ASSERT_TRUE(project.await_events("published", 1, seconds(120)));
  EXPECT_FALSE(running_job(brno).empty());
  brno.node_down(2);
  std::this_thread::sleep_for(seconds(15));
  brno.node_up(2);
  EXPECT_EQ(finish(pid), 0);
  EXPECT_EQ(project.current_sha256(), expected);
  const std::vector<std::string> once = {"alba 1 2", "alba 2 1", "alba 3 1",
                                         "brno 1 1", "brno 2 1", "brno 3 1"};
  EXPECT_EQ(project.trainings(), once);
}

// A certificate that expires while jobs run: the facility waits for a new one and goes on.
TEST(BedFaults, AnExpiredCertificateWaitsForItsRenewal) {
  BedProject project;
  NEED(project);
  const Facility& alba = project.facility("alba");
  Facility certified = alba;
  certified.key = alba.certified_key;
  project.place("alba", test::placement(certified));
  project.set_training_time(3000);
  project.write_config();
  alba.certify("-1m:+8s");
  const pid_t pid = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2));
  std::this_thread::sleep_for(seconds(8));
  alba.stop_daemon("sshd");  // a connection that is up outlives its certificate
  alba.start_daemon("sshd");
  const auto status = [&] { return project.xffl({"status", "-p", project.path().string()}).out; };
  EXPECT_TRUE(
      await([&] { return status().find("PAUSED(auth)") != std::string::npos; }, seconds(60)))
      << status();
  EXPECT_THAT(status(), HasSubstr("expired"));
  alba.certify("-1m:+10m");
  EXPECT_EQ(finish(pid), 0);
  EXPECT_EQ(project.current_sha256(), local_sha256());
}

// A host key that changed is refused until a person trusts the new one; the other facility goes on.
TEST(BedFaults, AChangedHostKeyWaitsForAPerson) {
  BedProject project;
  NEED(project);
  project.set_training_time(3000);
  project.write_config();
  const Facility& alba = project.facility("alba");
  const pid_t pid = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2));
  alba.change_host_key();
  ASSERT_TRUE(project.await_events("update_accepted", 1));
  const auto status = [&] { return project.xffl({"status", "-p", project.path().string()}).out; };
  EXPECT_TRUE(
      await([&] { return status().find("HOST KEY CHANGED") != std::string::npos; }, seconds(60)))
      << status();
  const std::string key = (alba.folder / "etc/ssh/host_key.pub").string();
  const std::string shown = run_process({.argv = {"ssh-keygen", "-lf", key}}).out;
  const size_t begin = shown.find("SHA256:");
  const std::string fingerprint = shown.substr(begin, shown.find(' ', begin) - begin);
  const ProcessResult trusted =
      project.xffl({"trust", "alba", "--yes", fingerprint, "-p", project.path().string()});
  ASSERT_EQ(trusted.exit_code, 0) << trusted.err;
  EXPECT_EQ(finish(pid), 0);
  EXPECT_EQ(project.current_sha256(), local_sha256());
}

// No room at a facility: it is said, and the run goes on when there is room again.
TEST(BedFaults, AFullScratchWaitsForRoom) {
  BedProject project({"--scratch-mb", "2"});
  NEED(project);
  // A tmpfs is seen only from inside: trainings are noted in the home folder.
  for (const char* name : {"alba", "brno"}) {
    const Facility& facility = project.facility(name);
    test::Placement place = test::placement(facility);
    place.trainings = facility.home + "/trainings.log";
    place.trainings_here = facility.folder / "home" / facility.user / "trainings.log";
    project.place(name, place);
  }
  project.write_config();
  const Facility& alba = project.facility("alba");
  alba.exec_as_user({"cp", "/dev/zero", "/scratch/filler"});
  const pid_t pid = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 1));  // brno's
  const auto status = [&] { return project.xffl({"status", "-p", project.path().string()}).out; };
  EXPECT_TRUE(await([&] { return status().find("pace") != std::string::npos; }, seconds(20)))
      << status();
  alba.exec_as_user({"rm", "/scratch/filler"});
  EXPECT_EQ(finish(pid), 0);
  EXPECT_EQ(project.current_sha256(), local_sha256());
}

}  // namespace
}  // namespace xffl
