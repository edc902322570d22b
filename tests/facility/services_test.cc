#include "xffl/facility/services.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "remote/asking_host.h"
#include "support/await.h"
#include "support/fake_session.h"
#include "support/sshd.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/remote/login_shell.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {
namespace {

using testing::ElementsAre;
using testing::Pair;
using testing::StartsWith;

// A round's job and the short job of `xffl doctor --job` differ in their settings.
TEST(Services, ASchedulerIsThatOfTheSettings) {
  const test::TempDir dir;
  SystemClock clock;
  const Services services = make_services(clock, dir.path());
  config::Facility facility;
  facility.name = FacilityName("alba");
  facility.scheduler = submit::QueueSettings("slurm");
  const auto session = services.connect(facility);
  const auto of_round = services.scheduler(facility, session);
  EXPECT_EQ(services.scheduler(facility, session), of_round);
  facility.scheduler.as<submit::SlurmSettings>().time = std::chrono::minutes(15);
  const auto of_check = services.scheduler(facility, session);
  EXPECT_NE(of_check, of_round);
  config::Facility other = facility;
  other.name = FacilityName("brno");
  EXPECT_NE(services.scheduler(facility, services.connect(other)), of_check)
      << "the facility has another host";
}

// Some sites have the programs of their queue on the PATH of login shells only.
TEST(Services, TheQueueOfASiteWithALoginShellIsAskedThere) {
  const test::TempDir dir;
  SystemClock clock;
  const Services services = make_services(clock, dir.path());
  config::Facility facility;
  facility.scheduler = submit::QueueSettings("slurm");
  const auto command_of = [&](const char* name, bool login_shell) {
    facility.name = FacilityName(name);
    facility.login_shell = login_shell;
    const auto session = std::make_shared<test::FakeSession>();
    std::vector<std::string> command;
    session->on_run = [&](const std::vector<std::string>& argv, const std::string&) {
      command = argv;
      return remote::CommandResult{};
    };
    services.scheduler(facility, session)->cancel({JobId("7"), "job"}, {});
    return command;
  };
  const std::vector<std::string> plain = command_of("alba", false);
  EXPECT_THAT(plain, testing::Contains("scancel"));
  EXPECT_EQ(command_of("brno", true), remote::in_login_shell(plain));
}

// A run that reads xffl.yaml again, for a new member, may find another host of an old one.
TEST(Services, ASessionIsThatOfTheSettings) {
  const test::TempDir dir;
  SystemClock clock;
  const Services services = make_services(clock, dir.path());
  config::Facility facility;
  facility.name = FacilityName("alba");
  facility.access = config::AccessKind::kSsh;
  facility.ssh.hosts = {{.name = "old", .port = 22}};
  facility.transfer.hosts = {{.name = "mover", .port = 22}};
  const auto commands = services.connect(facility), files = services.connect_transfer(facility);
  EXPECT_EQ(services.connect(facility), commands);
  EXPECT_EQ(services.connect_transfer(facility), files);
  facility.ssh.hosts[0].name = "new";
  EXPECT_NE(services.connect(facility), commands);
  EXPECT_EQ(services.connect_transfer(facility), files);
  facility.transfer.hosts[0].name = "other";
  EXPECT_NE(services.connect_transfer(facility), files);
  facility.transfer.hosts.clear();
  EXPECT_EQ(services.connect_transfer(facility), services.connect(facility))
      << "one log-in of the user serves both";
}

config::Facility ssh_facility(const test::Sshd& sshd) {
  config::Facility facility;
  facility.name = FacilityName("alba");
  facility.access = config::AccessKind::kSsh;
  facility.ssh = sshd.settings();
  return facility;
}

// The prompts of all facilities come to one terminal.
TEST(Services, APromptNamesItsFacilityAndHidesAPassword) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  test::Sshd sshd;  // provides the keys and a port
  sshd.stop();
  const remote::AskingHost host(sshd.dir() / "host_key", sshd.port());
  const test::TempDir project;
  std::filesystem::copy_file(sshd.known_hosts(), project / "known_hosts");
  const config::Facility facility = ssh_facility(sshd);
  std::vector<std::pair<std::string, bool>> prompts;
  SystemClock clock;
  const Services services =
      make_services(clock, project.path(), [&](const std::string& prompt, bool echo) {
        prompts.emplace_back(prompt, echo);
        return std::string("123456");
      });
  // The host accepts the log-in and offers no service.
  test::error_of([&] { services.connect(facility)->stat(RemotePath("/")); });
  EXPECT_THAT(prompts,
              ElementsAre(Pair(StartsWith("alba: "), false), Pair(StartsWith("alba: "), true)));
}

// Each facility asks from a thread of its own. With two prompts at once, the answer to one of them
// may reach the other facility.
TEST(Services, FacilitiesAskOneAfterTheOther) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  test::Sshd alba, brno;  // provide keys and ports
  alba.stop();
  brno.stop();
  const remote::AskingHost at_alba(alba.dir() / "host_key", alba.port());
  const remote::AskingHost at_brno(brno.dir() / "host_key", brno.port());
  const test::TempDir project;
  write_file_atomic(project / "known_hosts",
                    read_file(alba.known_hosts(), 10'000) + read_file(brno.known_hosts(), 10'000));
  std::atomic<int> prompts = 0, open = 0;
  std::atomic<bool> several = false;
  SystemClock clock;
  const Services services = make_services(clock, project.path(), [&](const std::string&, bool) {
    if (++open > 1) several = true;
    // The first answer takes its time.
    if (++prompts == 1) test::await([&] { return several.load(); }, std::chrono::seconds(2));
    --open;
    return std::string("123456");
  });
  config::Facility other = ssh_facility(brno);
  other.name = FacilityName("brno");
  {
    std::vector<std::jthread> threads;
    for (const config::Facility& facility : {ssh_facility(alba), other})
      threads.emplace_back([&services, facility] {
        // The host accepts the log-in and offers no service.
        test::error_of([&] { services.connect(facility)->stat(RemotePath("/")); });
      });
  }
  EXPECT_EQ(prompts, 4);
  EXPECT_FALSE(several);
}

TEST(Services, ALogInReachesTheTransferHostToo) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  const test::Sshd commands;
  test::Sshd transfer;  // provides a host key and a port
  transfer.stop();
  const remote::AskingHost host(transfer.dir() / "host_key", transfer.port());
  const test::TempDir project;
  write_file_atomic(project / "known_hosts", read_file(commands.known_hosts(), 10'000) +
                                                 read_file(transfer.known_hosts(), 10'000));
  config::Facility facility = ssh_facility(commands);
  facility.transfer.hosts = transfer.settings().hosts;
  int questions = 0;
  SystemClock clock;
  make_services(clock, project.path()).log_in(facility, [&](const std::string&, bool) {
    return ++questions, std::string("123456");
  });
  EXPECT_EQ(questions, 2);
}

}  // namespace
}  // namespace xffl::facility
