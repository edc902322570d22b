// A shared file system that shows files late, and not in the order of their creation: one node has
// a mount of its own, and the test copies the files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <sstream>
#include <thread>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

using test::await;
using test::Facility;
using test::local_sha256;
using test::TestbedProject;
using testing::HasSubstr;

ProcessResult on_node(const Facility& facility, const std::string& script) {
  return facility.exec_on_login(
      {"sh", "-c", "exec nsenter -t $(cat /run/xffl/node1.pid) -m -p sh -ec \"$0\"", script});
}

// The problems of the readings that did not match the report.
std::vector<std::string> mismatches(const TestbedProject& project) {
  std::vector<std::string> lines;
  std::istringstream log(read_file(project.log(), 1 << 20));
  for (std::string line; std::getline(log, line);)
    if (line.find("an update does not match its report: reading it again") != std::string::npos)
      lines.push_back(line);
  return lines;
}

test::Placement patient_placement(const Facility& facility) {
  test::Placement place =
      placement(facility, "", "nodes: 1, time: 5m, warning: 1m, extra: ['--nodelist=alba1']");
  const std::string settle_time = "settle_time: 2s";
  place.yaml.replace(place.yaml.find(settle_time), settle_time.size(), "settle_time: 5s");
  return place;
}

void expect_one_training(const TestbedProject& project) {
  project.expect_result(local_sha256([](test::Project& here) { here.set_rounds(1); }), "",
                        {"alba 1 1", "brno 1 1"});
  EXPECT_EQ(project.count_events("attempt_failed"), 0);
  const auto lines = mismatches(project);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("manifest.json"));
  EXPECT_THAT(lines[1], HasSubstr("model.safetensors"));
}

// The coordinator reads the update three times, a settle time apart. Its first reading finds the
// report without the update, the second one half of the update's model, the third one all. The
// coordinator is stopped while the test copies.
TEST(TestbedLateFiles, AReportBeforeItsUpdateAndAHalfFileAreReadAgain) {
  TestbedProject project;
  NEED_TESTBED(project);
  const Facility& alba = project.facility("alba");
  project.place("alba", patient_placement(alba));
  project.set_rounds(1);
  project.write_config();
  const ProcessResult mounted = on_node(
      alba,
      "mount -t tmpfs own /mnt\nmkdir /mnt/shared /mnt/own /mnt/work\nmount --bind /scratch "
      "/mnt/shared\nchown --reference=/mnt/shared /mnt/own\nmount -t overlay late -o "
      "lowerdir=/mnt/shared,upperdir=/mnt/own,workdir=/mnt/work /scratch\n");
  if (mounted.exit_code != 0) GTEST_SKIP() << "no overlay here: " << mounted.err;
  auto run = project.start_run();
  ASSERT_TRUE(await([&] { return !on_node(alba, "find /mnt/own -name report.json").out.empty(); }));
  const auto show = [&](const std::string& script) {
    run.signal(SIGSTOP);
    const ProcessResult shown = on_node(
        alba,
        "cd /mnt/own\nupdate=$(find . -type d -name update)\nto=/mnt/shared/$update\n" + script);
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    run.signal(SIGCONT);
  };
  show("tar --exclude=update -cf - . | tar -xpf - -C /mnt/shared\n");
  ASSERT_TRUE(await([&] { return mismatches(project).size() == 1; })) << project.status();
  show(
      "mkdir $to\ncp -p $update/manifest.json $update/config.json $to/\nhead -c 300 "
      "$update/model.safetensors >$to/model.safetensors\nchown --reference=$update $to "
      "$to/model.safetensors\n");
  ASSERT_TRUE(await([&] { return mismatches(project).size() == 2; })) << project.status();
  show("cp -p $update/model.safetensors $to/\n");
  ASSERT_EQ(run.finish(), 0) << read_file(project.log(), 1 << 20);
  expect_one_training(project);
}

// Two login nodes: the coordinator submits through the first one, which then goes down. The second
// one has its own mount, where the files of the finished job arrive late and in parts.
TEST(TestbedLateFiles, ASecondLoginNodeThatShowsTheFilesLate) {
  TestbedProject project;
  NEED_TESTBED(project);
  const Facility& alba = project.facility("alba");
  test::Placement place = patient_placement(alba);
  const std::string hosts = "hosts: ['" + alba.host + "'";
  place.yaml.replace(place.yaml.find(hosts), hosts.size(), hosts + ", '" + alba.host + ":2022'");
  project.place("alba", place);
  project.set_rounds(1);
  project.set_hold();
  project.write_config();
  std::istringstream known(read_file(alba.known_hosts, 1 << 20));
  std::string pinned = read_file(alba.known_hosts, 1 << 20);
  for (std::string line; std::getline(known, line);)
    if (line.starts_with(alba.host + " "))
      pinned += "[" + alba.host + "]:2022" + line.substr(alba.host.size()) + "\n";
  write_file_atomic(project.path() / "known_hosts", pinned);

  auto run = project.start_run();
  ASSERT_FALSE(project.running_job("alba").empty());
  ASSERT_TRUE(project.await_events("submitted", 2));
  const auto on_login = [&](const std::string& script) {
    const ProcessResult result = alba.exec_on_login({"sh", "-ec", script});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  run.signal(SIGSTOP);
  project.release();
  ASSERT_TRUE(await([&] { return !on_login("find /scratch/work -name report.json").empty(); }));
  alba.stop_daemon("sshd");
  on_login(
      "mkdir /late\ncd /scratch\ntar --exclude=out -cf - . | tar -xpf - -C /late\n"
      "chown --reference=/scratch /late\n"
      "unshare --mount sh -ec 'mkdir /mnt/real\nmount --bind /scratch /mnt/real\n"
      "mount --bind /late /scratch\n"
      "exec /usr/sbin/sshd -f /etc/ssh/sshd_config -p 2022 -o PidFile=/run/second.pid "
      "-E /var/log/slurm/second.log'\n");
  run.signal(SIGCONT);
  const auto show = [&](const std::string& script) {
    run.signal(SIGSTOP);
    on_login("cd /scratch\nout=$(find work -type d -name out)\n" + script);
    run.signal(SIGCONT);
  };
  // The job has ended, and its report is not there.
  ASSERT_TRUE(await([&] {
    return project.status().find("alba") != std::string::npos &&
           alba.exec_on_login({"grep", "-q", "Accepted publickey", "/var/log/slurm/second.log"})
                   .exit_code == 0;
  })) << project.status();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(project.count_events("attempt_failed"), 0);
  show("tar --exclude=update -cf - $out | tar -xpf - -C /late\n");
  ASSERT_TRUE(await([&] { return mismatches(project).size() == 1; })) << project.status();
  show(
      "mkdir /late/$out/update\ncd $out/update\nto=/late/$out/update\ncp -p manifest.json "
      "config.json $to/\nhead -c 300 model.safetensors >$to/model.safetensors\n"
      "chown --reference=. $to $to/model.safetensors\n");
  ASSERT_TRUE(await([&] { return mismatches(project).size() == 2; })) << project.status();
  show("cp -p $out/update/model.safetensors /late/$out/update/\n");
  ASSERT_EQ(run.finish(), 0) << read_file(project.log(), 1 << 20);
  expect_one_training(project);
}

}  // namespace
}  // namespace xffl
