// One connection to a real sshd, with and without faults.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <thread>

#include "connector.h"
#include "known_hosts.h"
#include "ssh_test.h"
#include "support/fake_clock.h"
#include "support/free_port.h"
#include "support/hostile_server.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

class SshLink : public SshTest {
 protected:
  static SshTimeouts impatient() {
    return {.connect = 2000ms,
            .log_in = 3000ms,
            .keepalive = 500ms,
            .silence = 2000ms,
            .operation = 5000ms};
  }
  // Settings that reach `inner` through `jumps`, all of them with trusted keys.
  static SshSettings through(const std::vector<const test::Sshd*>& jumps, const test::Sshd& inner) {
    SshSettings settings = inner.settings();
    for (const test::Sshd* jump : jumps) {
      settings.jump.push_back(jump->settings().hosts[0]);
      std::ofstream(jump->dir() / "authorized_keys", std::ios::app)
          << read_file(inner.dir() / "id.pub", 10'000);
      std::ofstream(inner.known_hosts(), std::ios::app) << read_file(jump->known_hosts(), 10'000);
    }
    return settings;
  }
  // The memory that further sessions hold after a few calls, in KiB for each.
  static long resident_kib_of_an_idle_session(const SshSettings& settings) {
    std::vector<std::shared_ptr<Session>> sessions;
    const auto connect = [&] {
      const auto& session = sessions.emplace_back(make_ssh_session(settings));
      const RemotePath file(settings.known_hosts.string());
      EXPECT_TRUE(session->stat(file));
      EXPECT_FALSE(read_text(*session, file, 100'000).empty());
    };
    connect();  // loads the libraries' tables
    const long before = resident_kib();
    constexpr long kFurther = 5;
    for (int i = 0; i < kFurther; ++i) connect();
    return (resident_kib() - before) / kFurther;
  }
  // Memory of this process that no file backs.
  static long resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("RssAnon:")) return std::stol(line.substr(8));
    throw std::runtime_error("/proc/self/status has no RssAnon");
  }
};

TEST_F(SshLink, RunsCommandsWithInputAndExitCodes) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  const std::string input(3'000'000, 'x');
  const auto cat = session->run({"sh", "-c", "cat; echo no >&2; exit 4"}, input, 20s, {});
  EXPECT_EQ(cat.exit_code, 4);
  EXPECT_TRUE(cat.out == input);
  EXPECT_EQ(cat.err, "no\n");
  const auto large = run(*session, {"head", "-c", "20000000", "/dev/zero"});
  EXPECT_EQ(large.out.size(), 16u << 20);
  EXPECT_EQ(large.exit_code, 0);
  // A command that does not read its stdin blocks no other call.
  EXPECT_EQ(session->run({"true"}, input, 20s, {}).exit_code, 0);
}

TEST_F(SshLink, AnInterruptedCommandHasNoExitCode) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  // Kills the shell that reports the exit code, as a site that kills processes may.
  const Error error = error_of([&] { run(*session, {"sh", "-c", "kill -9 $PPID"}); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote);
  EXPECT_THAT(error.what(), HasSubstr("was interrupted: its effect is unknown"));
}

TEST_F(SshLink, ATimeoutAndAStopEndTheWait) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  expect_works(*session);
  const auto start = SteadyClock::now();
  EXPECT_EQ(error_of([&] { run(*session, {"sleep", "30"}, 300ms); }).kind(), ErrorKind::kRemote);
  const std::string input(8u << 20, 'x');  // exceeds the window of a channel
  EXPECT_EQ(error_of([&] {
              session->run({"sleep", "30"}, input, 1s, {});
            }).kind(),
            ErrorKind::kRemote);
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(200ms);
    stop.request_stop();
  });
  EXPECT_EQ(error_of([&] {
              session->run({"sleep", "30"}, "", 30s, stop.get_token());
            }).kind(),
            ErrorKind::kCancelled);
  EXPECT_LT(SteadyClock::now() - start, 25s) << "each command lasts 30 s";
  expect_works(*session);
  EXPECT_EQ(sshd.connections(), 1);
}

// A host that floods a channel keeps each step successful.
TEST_F(SshLink, AStepThatAlwaysSucceedsHasADeadline) {
  test::Sshd sshd;
  Connector connector(sshd.settings());
  const auto connection = connector.get();
  const auto succeeds = [](ssh_session) { return true; };
  EXPECT_TRUE(connection->wait_until(succeeds, deadline_in(60s), {}, "reading"));
  EXPECT_FALSE(connection->wait_until(succeeds, deadline_in(0ms), {}, "reading"));
}

// The server stops. With XFFL_CAMPAIGN the limits are the default ones.
TEST_F(SshLink, ADeadLinkIsDetectedInTime) {
  test::Sshd sshd;
  auto settings = sshd.settings();
  EXPECT_EQ(settings.timeouts.silence, 30s);
  EXPECT_EQ(settings.timeouts.keepalive, 10s);
  EXPECT_EQ(settings.timeouts.connect, 10s);
  EXPECT_EQ(settings.timeouts.log_in, 30s) << "a host asks a directory service that may be slow";
  EXPECT_EQ(settings.timeouts.operation, 60s);
  if (std::getenv("XFFL_CAMPAIGN") == nullptr) settings.timeouts = impatient();
  const auto session = make_ssh_session(settings);
  expect_works(*session);
  const auto frozen = sshd.session_processes();
  ASSERT_FALSE(frozen.empty());
  for (const pid_t pid : frozen) ::kill(pid, SIGSTOP);
  const auto start = SteadyClock::now();
  const Error error = error_of([&] { run(*session, {"sleep", "60"}, 60s); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote);
  EXPECT_THAT(error.what(), HasSubstr("no data received"));
  const std::chrono::duration<double> noticed = SteadyClock::now() - start;
  std::cout << "a link without data was noticed after " << noticed.count() << " s\n";
  EXPECT_GE(noticed, settings.timeouts.silence - 100ms);
  EXPECT_LT(noticed, 45s) << "the command lasts a minute";
  for (const pid_t pid : frozen) ::kill(pid, SIGKILL);
  expect_works(*session);  // through a new connection
  EXPECT_EQ(sshd.connections(), 2);
}

TEST_F(SshLink, ASilentCommandIsNotADeadLink) {
  test::Sshd sshd;
  auto settings = sshd.settings();
  settings.timeouts = impatient();
  const auto session = make_ssh_session(settings);
  EXPECT_EQ(run(*session, {"sh", "-c", "sleep 5; echo done"}).out, "done\n");
  std::this_thread::sleep_for(3s);  // an idle link is alive, too
  expect_works(*session);
  EXPECT_EQ(sshd.connections(), 1);
}

// A site kills processes of its login nodes that use much CPU time, the coordinator's as well.
TEST_F(SshLink, AnIdleConnectionUsesNoCpuTime) {
  test::Sshd sshd;
  Connector connector(sshd.settings());
  const auto connection = connector.get();
  connection->with([](ssh_session session) {  // more than the socket takes at once
    for (int i = 0; i < 400; ++i) ssh_send_ignore(session, std::string(20'000, 'x').c_str());
  });
  Channel::exec(connection, "true", deadline_in(60s), {});
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(2s);
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 10);
}

// A frozen host accepts connections; the other thread waits for it up to its time limit.
TEST_F(SshLink, AStopEndsTheWaitForTheAttemptOfAnotherThread) {
  test::Sshd sshd;
  const SshSettings settings = sshd.settings();
  sshd.stop();
  const UniqueFd silent = test::listen_on(sshd.port());
  Connector connector(settings);
  std::stop_source connects, waits;
  ErrorKind ended_by{};
  std::jthread other([&] {
    const StopScope scope(connects.get_token());
    ended_by = error_of([&] { connector.get(); }).kind();
  });
  pollfd attempt{silent.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&attempt, 1, 60'000), 1);
  waits.request_stop();
  {
    const StopScope scope(waits.get_token());
    EXPECT_EQ(error_of([&] { connector.get(); }).kind(), ErrorKind::kCancelled);
  }
  connects.request_stop();
  other.join();
  EXPECT_EQ(ended_by, ErrorKind::kCancelled) << "the attempt had ended before the wait for it";
}

TEST_F(SshLink, ReconnectsAfterAKilledServer) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  expect_works(*session);
  const RemotePath file(sshd.key().string());
  EXPECT_TRUE(session->stat(file));  // the session keeps an SFTP client
  const auto begun = sshd.dir() / "begun";
  std::jthread killer([&] {
    EXPECT_TRUE(test::await([&] { return std::filesystem::exists(begun); }));
    auto processes =
        sshd.session_processes();  // the command first, so that it reports no exit code
    std::reverse(processes.begin(), processes.end());
    for (const pid_t pid : processes) ::kill(pid, SIGKILL);
  });
  const auto command = [&] {
    run(*session, {"sh", "-c", "touch \"$0\"; sleep 600", begun.string()}, 600s);
  };
  EXPECT_EQ(error_of(command).kind(), ErrorKind::kRemote);
  killer.join();
  expect_works(*session);
  EXPECT_TRUE(session->stat(file)) << "through a client of the new link";
}

// Here the thread that makes a request may notice the lost link, before the connection's thread.
TEST_F(SshLink, ATunnelOverALostLinkIsNotRefused) {
  test::Sshd sshd;
  for (int i = 0; i < 5; ++i) {
    const auto connection = Connector(sshd.settings()).get();
    connection->with([](ssh_session session) { ::shutdown(ssh_get_fd(session), SHUT_RDWR); });
    const Error error = error_of([&] {
      Channel::tunnel(connection, {"127.0.0.1", sshd.port()}, deadline_in(20s));
    });
    EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
  }
}

TEST_F(SshLink, TriesTheNextLogInNode) {
  test::Sshd gone, there;
  auto settings = there.settings();
  settings.hosts.insert(settings.hosts.begin(), gone.settings().hosts[0]);
  std::ofstream(there.known_hosts(), std::ios::app) << read_file(gone.known_hosts(), 10'000);
  gone.stop();
  expect_works(*make_ssh_session(settings));
}

// Settings with the login nodes `first` and `second` in this order, both trusted.
SshSettings both(const test::Sshd& first, const test::Sshd& second) {
  auto settings = second.settings();
  settings.hosts.insert(settings.hosts.begin(), first.settings().hosts[0]);
  settings.keys.insert(settings.keys.begin(), first.key());
  std::ofstream(second.known_hosts(), std::ios::app) << read_file(first.known_hosts(), 10'000);
  return settings;
}

// A rebooted node refuses every key until its home folders are mounted; the other node serves.
TEST_F(SshLink, ALogInNodeThatRefusesTheKeyDoesNotHideTheOthers) {
  test::Sshd refusing({.authorize_key = false}), good;
  test::FakeClock clock;
  Connector connector(both(refusing, good), std::make_shared<ConnectionLimits>(clock));
  for (int i = 0; i < 3; ++i) {
    const auto connection = connector.get();
    EXPECT_EQ(connection->name(), host_label(good.settings().hosts[0]));
    connection->with([](ssh_session session) { ssh_disconnect(session); });
    clock.advance(2min);
  }
  EXPECT_EQ(refusing.connections(), 1);
  EXPECT_EQ(good.connections(), 3);
  for (int i = 0; i < 3; ++i) {
    const auto connection = connector.get();
    connection->with([](ssh_session session) { ssh_disconnect(session); });
    clock.advance(5min);
  }
  EXPECT_EQ(refusing.connections(), 2) << "one more try after five minutes, and no third";
}

TEST_F(SshLink, EachLogInNodeMayRefuseTheKeyTwice) {
  test::Sshd one({.authorize_key = false}), two({.authorize_key = false});
  test::FakeClock clock;
  Connector connector(both(one, two), std::make_shared<ConnectionLimits>(clock));
  for (const int tries : {1, 1, 2, 2}) {
    const Error error = error_of([&] { connector.get(); });
    EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
    EXPECT_EQ(one.connections(), tries);
    EXPECT_EQ(two.connections(), tries);
    clock.advance(150s);
  }
  EXPECT_THAT(error_of([&] { connector.get(); }).what(), HasSubstr("refused twice"));
}

// A user may be needed, so the facility is paused; the other node is tried nevertheless.
TEST_F(SshLink, ANodeThatRefusesTheKeyCountsMoreThanOneThatIsDown) {
  test::Sshd refusing({.authorize_key = false}), down;
  test::FakeClock clock;
  Connector connector(both(refusing, down), std::make_shared<ConnectionLimits>(clock));
  down.stop();
  for (int i = 0; i < 2; ++i) {
    const Error error = error_of([&] { connector.get(); });
    EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
    EXPECT_THAT(error.what(),
                HasSubstr(host_label(down.settings().hosts[0]) + " is not reachable"));
    clock.advance(2min);
  }
  EXPECT_EQ(refusing.connections(), 1);
  down.start();
  EXPECT_EQ(connector.get()->name(), host_label(down.settings().hosts[0]));
}

// The jump host refuses a tunnel to a host that is down.
TEST_F(SshLink, AHostThatIsDownBehindAJumpHostDoesNotHideTheOthers) {
  test::Sshd jump, down, good;
  SshSettings settings = both(down, good);
  settings.jump = through({&jump}, good).jump;
  down.stop();
  EXPECT_EQ(Connector(settings).get()->name(), host_label(good.settings().hosts[0]));
}

// A facility that waits for its user tries every five seconds.
TEST_F(SshLink, AFacilityThatWaitsForItsUserLeavesTheJumpHostToOthers) {
  test::Sshd jump, refusing({.authorize_key = false}), down;
  test::FakeClock clock;
  const auto limits = std::make_shared<ConnectionLimits>(clock);
  SshSettings settings = both(refusing, down);
  settings.jump = through({&jump}, down).jump;
  Connector connector(settings, limits);
  down.stop();
  for (int i = 0; i < 60; ++i) {
    const Error error = error_of([&] { connector.get(); });
    EXPECT_EQ(error.kind(), ErrorKind::kAuth) << i << ": " << error.what();
    clock.advance(5s);
  }
  EXPECT_LE(jump.connections(), 6);
  EXPECT_EQ(limits->start(host_label(jump.settings().hosts[0]), 0ns), 0ns);
  down.start();
  clock.advance(5min);
  EXPECT_EQ(connector.get()->name(), host_label(down.settings().hosts[0]));
}

TEST_F(SshLink, AUserWhoLogsInDoesNotWaitForANodeThatWasDown) {
  test::Sshd jump, refusing({.authorize_key = false}), down;
  test::FakeClock clock;
  SshSettings settings = both(refusing, down);
  settings.jump = through({&jump}, down).jump;
  Connector connector(settings, std::make_shared<ConnectionLimits>(clock));
  down.stop();
  EXPECT_EQ(error_of([&] { connector.get(); }).kind(), ErrorKind::kAuth);
  down.start();
  clock.advance(1min);
  EXPECT_EQ(error_of([&] { connector.get(); }).kind(), ErrorKind::kAuth) << "without a user";
  const Ask ask = [](const std::string&, bool) { return std::string("unasked"); };
  EXPECT_EQ(connector.get(&ask)->name(), host_label(down.settings().hosts[0]));
}

TEST_F(SshLink, AnOutageOfTheJumpHostIsNoneOfTheLogInNode) {
  test::Sshd jump, refusing({.authorize_key = false}), good;
  test::FakeClock clock;
  SshSettings settings = both(refusing, good);
  settings.jump = through({&jump}, good).jump;
  Connector connector(settings, std::make_shared<ConnectionLimits>(clock));
  EXPECT_EQ(connector.get()->name(), host_label(good.settings().hosts[0]));
  connector.get()->with([](ssh_session session) { ssh_disconnect(session); });
  jump.stop();
  EXPECT_THAT(error_of([&] { connector.get(); }).what(), HasSubstr("is not reachable"));
  jump.start();
  clock.advance(1min);
  EXPECT_EQ(connector.get()->name(), host_label(good.settings().hosts[0]));
}

// A node under maintenance refuses the key, and goes down before the second try.
TEST_F(SshLink, ANodeThatGoesDownAfterARefusalHasAnErrorAtEachTry) {
  test::Sshd jump, node({.authorize_key = false});
  test::FakeClock clock;
  Connector connector(through({&jump}, node), std::make_shared<ConnectionLimits>(clock));
  EXPECT_EQ(error_of([&] { connector.get(); }).kind(), ErrorKind::kAuth);
  node.stop();
  clock.advance(5min);
  const Error down = error_of([&] { connector.get(); });
  EXPECT_EQ(down.kind(), ErrorKind::kRemote);
  EXPECT_THAT(down.what(), HasSubstr(host_label(node.settings().hosts[0])));
  clock.advance(2min);
  EXPECT_STREQ(error_of([&] { connector.get(); }).what(), down.what());
}

// Two threads may fail to write through one connection.
TEST_F(SshLink, SeveralFailedWritesLeaveANodeOnce) {
  test::Sshd bad, good;
  Connector connector(both(bad, good));
  const auto failed = connector.get();
  EXPECT_TRUE(connector.leave(failed, "a full disk"));
  const auto other = connector.get();
  EXPECT_NE(other, failed);
  EXPECT_TRUE(connector.leave(failed, "a full disk"));
  EXPECT_EQ(connector.get(), other);
}

// A node with a second factor refuses a log-in without prompts.
TEST_F(SshLink, ARefusedChangeOfTheNodeForbidsNoLogIn) {
  test::Sshd bad, other;
  test::FakeClock clock;
  Connector connector(both(bad, other), std::make_shared<ConnectionLimits>(clock));
  const auto connection = connector.get();
  const auto keys = other.dir() / "authorized_keys", away = other.dir() / "away";
  std::filesystem::rename(keys, away);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(connector.leave(connection, "a full disk"));
    clock.advance(31min);
  }
  EXPECT_EQ(other.connections(), 2);
  std::filesystem::rename(away, keys);
  bad.stop();
  EXPECT_TRUE(test::await([&] { return !connection->alive(); }));
  EXPECT_EQ(connector.get()->name(), host_label(other.settings().hosts[0]));
}

TEST_F(SshLink, FurtherConnectionsFollowTheChangeOfTheNode) {
  test::Sshd bad, good;
  Connector connector(both(bad, good));
  EXPECT_EQ(connector.get_several(3).size(), 3u);
  EXPECT_TRUE(connector.leave(connector.get(), "a full disk"));
  for (const auto& connection : connector.get_several(3))
    EXPECT_EQ(connection->name(), host_label(good.settings().hosts[0]));
}

// A call of another thread gets its answer only after the change of the node.
TEST_F(SshLink, AnSftpClientOfTheNodeThatWasLeftServesNoLaterCall) {
  if (!test::HostileServer::missing().empty()) GTEST_SKIP() << test::HostileServer::missing();
  std::atomic<bool> is_held = false, is_left = false;
  std::atomic<int> looks = 0;
  test::HostileServer bad;
  bad.set([&](const std::string&) {
    const auto held = std::make_shared<std::string>();
    test::HostileServer::Behaviour behaviour;
    behaviour.on_request = [&,
                            held](const test::SftpPacket& request) -> std::optional<std::string> {
      if (request.type == test::kSftpExtended) return test::sftp_status(request.id, 4);
      if (request.type != test::kSftpLstat) return std::nullopt;
      ++looks;
      if (request.body.find("/slow") == std::string::npos) return std::nullopt;
      *held = test::sftp_status(request.id, 2);
      is_held = true;
      return "";
    };
    behaviour.on_step = [&, held](ssh_session, ssh_channel channel) {
      if (!is_left || held->empty()) return false;
      ssh_channel_write(channel, held->data(), static_cast<uint32_t>(held->size()));
      held->clear();
      return true;
    };
    return behaviour;
  });
  test::Sshd good;
  SshSettings settings = good.settings();
  settings.hosts.insert(settings.hosts.begin(), bad.settings().hosts[0]);
  std::ofstream(good.known_hosts(), std::ios::app) << read_file(bad.settings().known_hosts, 10'000);
  const auto session = make_ssh_session(settings);
  const RemotePath key(good.key().string()), folder = key.parent();
  EXPECT_TRUE(session->stat(key));  // connects
  std::jthread other([&] { EXPECT_FALSE(session->stat(folder / "slow")); });
  EXPECT_TRUE(test::await([&] { return is_held.load(); }));
  const Error error = error_of([&] { session->rename(key, folder / "renamed"); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
  is_left = true;
  other.join();
  const int before = looks;
  EXPECT_TRUE(session->stat(key));
  EXPECT_EQ(looks.load(), before);
  EXPECT_EQ(good.connections(), 1);
}

// A login node whose log-in shell starts no command while a file exists.
class SshNodeThatRunsNothing : public SshTest {
 protected:
  test::SshdOptions options() const {
    return {.before_login = "[ ! -e " + broken_.string() + " ] || exit 254"};
  }
  void break_node() { write_file_atomic(broken_, ""); }
  void mend_node() { std::filesystem::remove(broken_); }
  // Each call fails and takes `time`.
  void expect_failures(Session& session, int count, std::chrono::minutes time) {
    for (int i = 0; i < count; ++i) {
      const Error error = error_of([&] { expect_works(session); });
      EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
      clock_.advance(time);
    }
  }

  test::TempDir dir_;
  std::filesystem::path broken_ = dir_ / "broken";
  test::FakeClock clock_;
  std::shared_ptr<ConnectionLimits> limits_ = std::make_shared<ConnectionLimits>(clock_);
};

TEST_F(SshNodeThatRunsNothing, AnotherOneIsUsedAfterFiveMinutes) {
  test::Sshd bad(options()), good;
  const auto session = make_ssh_session(both(bad, good), limits_);
  expect_works(*session);
  break_node();
  expect_failures(*session, 5, 1min);
  EXPECT_EQ(good.connections(), 0) << "the trouble may end by itself";
  expect_failures(*session, 1, 0min);
  EXPECT_EQ(good.connections(), 1);
  expect_works(*session);
  EXPECT_EQ(bad.connections(), 1);
}

TEST_F(SshNodeThatRunsNothing, ACommandThatRunsEndsTheCount) {
  test::Sshd bad(options()), good;
  const auto session = make_ssh_session(both(bad, good), limits_);
  break_node();
  expect_failures(*session, 2, 1min);
  mend_node();
  expect_works(*session);
  break_node();
  clock_.advance(5min);
  expect_failures(*session, 3, 1min);
  EXPECT_EQ(good.connections(), 0);
}

// As sshd does when it cannot start a process.
TEST_F(SshNodeThatRunsNothing, ANodeThatRefusesEveryCommandIsLeft) {
  if (!test::HostileServer::missing().empty()) GTEST_SKIP() << test::HostileServer::missing();
  test::HostileServer bad;
  bad.set([](const std::string&) { return test::HostileServer::Behaviour{.refuses = true}; });
  test::Sshd good;
  SshSettings settings = good.settings();
  settings.hosts.insert(settings.hosts.begin(), bad.settings().hosts[0]);
  std::ofstream(good.known_hosts(), std::ios::app) << read_file(bad.settings().known_hosts, 10'000);
  const auto session = make_ssh_session(settings, limits_);
  for (int i = 0; i < 3; ++i) {
    const Error error = error_of([&] { expect_works(*session); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    clock_.advance(3min);
  }
  expect_works(*session);
  EXPECT_EQ(good.connections(), 1);
}

// The name may stand for several nodes.
TEST_F(SshNodeThatRunsNothing, OneNameGetsANewConnectionInHalfAnHour) {
  test::Sshd sshd(options());
  const auto session = make_ssh_session(sshd.settings(), limits_);
  expect_works(*session);
  break_node();
  expect_failures(*session, 2, 3min);
  EXPECT_EQ(sshd.connections(), 1);
  expect_failures(*session, 7, 3min);
  EXPECT_EQ(sshd.connections(), 2);
  clock_.advance(12min);
  expect_failures(*session, 3, 3min);
  EXPECT_EQ(sshd.connections(), 3);
  mend_node();
  expect_works(*session);
  EXPECT_EQ(sshd.connections(), 3);
}

TEST_F(SshNodeThatRunsNothing, ARefusedChangeOfAFileBehindOneNameIsAnIoError) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings(), limits_);
  const RemotePath below_a_file(sshd.key().string() + "/below");
  for (const int connections : {2, 2, 3}) {
    EXPECT_EQ(error_of([&] { session->make_dirs(below_a_file); }).kind(), ErrorKind::kIo);
    EXPECT_EQ(sshd.connections(), connections);
    clock_.advance(16min);
  }
}

// No login node is to blame for the disk of this machine.
TEST_F(SshLink, AFailedReadOfTheLocalFileLeavesNoNode) {
  test::Sshd one, two;
  const auto session = make_ssh_session(both(one, two));
  const Source broken = [](uint64_t, std::span<std::byte>) {
    throw Error(ErrorKind::kIo, "the disk here is broken");
  };
  const RemotePath copy((one.dir() / "copy").string());
  const Error error = error_of([&] { session->upload(copy, 0, 100, broken, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
  expect_works(*session);
  EXPECT_EQ(two.connections(), 0);
}

// Two login nodes with one file system, which the first of them cannot write.
class SshNodeThatCannotWrite : public SshTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    SshTest::SetUp();
    if (!IsSkipped() && !test::Sshd::no_own_view().empty())
      GTEST_SKIP() << test::Sshd::no_own_view();
  }

  static Error write_error(Session& session, const std::string& folder) {
    const std::string bytes(300'000, 'x');
    return error_of(
        [&] { session.write(RemotePath(folder + "/file"), 0, std::as_bytes(std::span(bytes))); });
  }

  test::TempDir shared_;
};

TEST_P(SshNodeThatCannotWrite, AnotherOneIsUsedAndTheUserIsToldOnce) {
  const std::string folder = shared_.path().string();
  test::Sshd bad({.own_view = "folder='" + folder + "'; " + GetParam()}), good;
  std::ofstream(good.dir() / "authorized_keys", std::ios::app)
      << read_file(bad.dir() / "id.pub", 10'000);
  const auto log_file = good.dir() / "xffl.log";
  log::set_file(log_file);
  const std::string bytes(300'000, 'x');
  const auto put = [&](Session& session, const std::string& name) {
    session.upload(RemotePath(folder + "/" + name), 0, bytes.size(),
                   [&](uint64_t, std::span<std::byte> out) {
                     std::fill(out.begin(), out.end(), std::byte{'x'});
                   },
                   {});
  };
  const std::vector<std::function<void(Session&)>> changes = {
      [&](Session& session) { put(session, "large"); },
      [&](Session& session) {
        session.write(RemotePath(folder + "/small"), 0, std::as_bytes(std::span(bytes)));
      },
      [&](Session& session) {
        const std::vector<NewFile> files = {{"one", bytes}, {"two", bytes}};
        session.put_files(RemotePath(folder + "/new"), files);
      },
  };
  for (const auto& change : changes) {
    const auto session = make_ssh_session(both(bad, good));
    const Error first = error_of([&] { change(*session); });
    EXPECT_EQ(first.kind(), ErrorKind::kRemote) << first.what();
    EXPECT_THAT(first.what(), testing::HasSubstr("the next try uses another log-in node"));
    change(*session);  // through the good node
    change(*session);
  }
  log::set_file({});
  EXPECT_EQ(read_file(folder + "/large", 1 << 20), bytes);
  EXPECT_EQ(read_file(folder + "/small", 1 << 20), bytes);
  EXPECT_EQ(read_file(folder + "/new/two", 1 << 20), bytes);
  EXPECT_EQ(bad.count("Accepted publickey"), 3) << "once for each session";
  EXPECT_EQ(good.count("Accepted publickey"), 3);
  const std::string log = read_file(log_file, 1 << 20);
  size_t told = 0;
  for (size_t at = 0; (at = log.find("it cannot write", at)) != std::string::npos; ++at) ++told;
  EXPECT_EQ(told, 3u) << log;
}

// When no other node can be reached, the error is that of the file, and the link stays.
TEST_P(SshNodeThatCannotWrite, WithoutAnotherOneTheErrorNamesTheFile) {
  const std::string folder = shared_.path().string();
  test::Sshd bad({.own_view = "folder='" + folder + "'; " + GetParam()}), gone;
  const auto session = make_ssh_session(both(bad, gone));
  expect_works(*session);
  gone.stop();
  for (int i = 0; i < 3; ++i) {
    const Error error = write_error(*session, folder);
    EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(folder + "/file"));
  }
  expect_works(*session);
  EXPECT_EQ(bad.count("Accepted publickey"), 1);
}

// A file system that is full for all nodes: each node is tried once, and the error is then kIo.
TEST_P(SshNodeThatCannotWrite, WhenNoNodeCanWriteEachIsTriedOnce) {
  const std::string folder = shared_.path().string(),
                    view = "folder='" + folder + "'; " + GetParam();
  test::Sshd one({.own_view = view}), two({.own_view = view});
  std::ofstream(two.dir() / "authorized_keys", std::ios::app)
      << read_file(one.dir() / "id.pub", 10'000);
  const auto session = make_ssh_session(both(one, two));
  EXPECT_EQ(write_error(*session, folder).kind(), ErrorKind::kRemote);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(write_error(*session, folder).kind(), ErrorKind::kIo);
  EXPECT_EQ(one.connections(), 1);
  EXPECT_EQ(two.connections(), 1);
}

TEST_P(SshNodeThatCannotWrite, ANodeThatRefusesTheLogInIsTriedOnce) {
  const std::string folder = shared_.path().string();
  test::Sshd bad({.own_view = "folder='" + folder + "'; " + GetParam()}),
      refusing({.authorize_key = false});
  const auto session = make_ssh_session(both(bad, refusing));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write_error(*session, folder).kind(), ErrorKind::kIo);
  EXPECT_EQ(refusing.connections(), 1);
}

TEST_P(SshNodeThatCannotWrite, AfterALostLinkTheOtherNodeIsUsed) {
  const std::string folder = shared_.path().string();
  test::Sshd bad({.own_view = "folder='" + folder + "'; " + GetParam()}), good;
  std::ofstream(good.dir() / "authorized_keys", std::ios::app)
      << read_file(bad.dir() / "id.pub", 10'000);
  const auto session = make_ssh_session(both(bad, good));
  EXPECT_EQ(write_error(*session, folder).kind(), ErrorKind::kRemote);
  for (const pid_t pid : good.session_processes()) ::kill(pid, SIGKILL);
  EXPECT_TRUE(test::await([&] {
    try {
      expect_works(*session);
      return true;
    } catch (const Error&) {  // the end of the old link
      return false;
    }
  }));
  EXPECT_EQ(bad.connections(), 1);
}

INSTANTIATE_TEST_SUITE_P(
    SshLink, SshNodeThatCannotWrite,
    testing::Values("mount --bind \"$folder\" \"$folder\"; mount -o remount,bind,ro \"$folder\"",
                    "mount -t tmpfs -o size=64k none \"$folder\""),
    [](const auto& each) { return std::string(each.index == 0 ? "ReadOnly" : "Full"); });

TEST_F(SshLink, ConnectsThroughATrustedJumpHost) {
  test::Sshd jump, inner;
  auto settings = inner.settings();
  settings.jump = jump.settings().hosts;
  std::ofstream(jump.dir() / "authorized_keys", std::ios::app)
      << read_file(inner.dir() / "id.pub", 10'000);
  EXPECT_EQ(error_of([&] { expect_works(*make_ssh_session(settings)); }).kind(), ErrorKind::kAuth);
  EXPECT_EQ(jump.connections() + inner.connections(), 0);
  std::ofstream(inner.known_hosts(), std::ios::app) << read_file(jump.known_hosts(), 10'000);
  const auto session = make_ssh_session(settings);
  expect_works(*session);
  EXPECT_EQ(jump.connections(), 1);
  const auto file = inner.dir() / "file", copy = inner.dir() / "copy";
  const std::string hash = numbered_file(file, 20'000'000);
  EXPECT_EQ(download_hash(*session, file), hash);
  upload(*session, file, copy);
  EXPECT_EQ(sha256_file(copy), hash);
  EXPECT_EQ(fetch_host_key(settings, settings.hosts[0]).fingerprint,
            trusted_keys(settings, settings.hosts[0])[0].fingerprint);
}

TEST_F(SshLink, ConnectsThroughTwoJumpHosts) {
  test::Sshd outer, middle, inner;
  const auto session = make_ssh_session(through({&outer, &middle}, inner));
  for (int i = 0; i < 2; ++i) expect_works(*session);
  for (const test::Sshd* host : {&outer, &middle, &inner}) EXPECT_EQ(host->connections(), 1);
}

// libssh makes the socket blocking while it connects.
TEST_F(SshLink, TheSocketOfAConnectionIsNonBlocking) {
  test::Sshd jump, inner;
  for (const SshSettings& settings : {jump.settings(), through({&jump}, inner)}) {
    Connector connector(settings);
    connector.get()->with([](ssh_session session) {
      EXPECT_NE(::fcntl(ssh_get_fd(session), F_GETFL) & O_NONBLOCK, 0);
    });
  }
}

// Other facilities behind the jump host have used a part of its limit.
TEST_F(SshLink, FurtherConnectionsLeaveRoomAtAJumpHost) {
  test::Sshd jump, inner;
  test::FakeClock clock;
  const auto limits = std::make_shared<ConnectionLimits>(clock);
  Connector connector(through({&jump}, inner), limits);
  for (int i = 0; i < 2; ++i) limits->start(host_label(jump.settings().hosts[0]), 0ns);
  EXPECT_EQ(connector.get_several(3).size(), 1u);
  clock.advance(1min);
  EXPECT_EQ(connector.get_several(3).size(), 3u);
}

// No login node can be reached then: a try at each of them would be one more refusal.
TEST_F(SshLink, AJumpHostThatRefusesTheKeyIsAskedOnceForAllNodes) {
  test::Sshd jump, inner;
  SshSettings settings = through({&jump}, inner);
  write_file_atomic(jump.dir() / "authorized_keys", "");
  settings.hosts.push_back({"localhost", inner.port()});
  std::string other = read_file(inner.known_hosts(), 10'000);
  other.resize(other.find('\n') + 1);
  other.replace(other.find("127.0.0.1"), 9, "localhost");
  std::ofstream(inner.known_hosts(), std::ios::app) << other;
  test::FakeClock clock;
  Connector connector(settings, std::make_shared<ConnectionLimits>(clock));
  for (const int tries : {1, 1, 2, 2}) {
    const Error error = error_of([&] { connector.get(); });
    EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
    EXPECT_EQ(jump.connections(), tries);
    clock.advance(150s);
  }
  EXPECT_EQ(inner.connections(), 0);
}

TEST_F(SshLink, AChangedHostKeyOfAJumpHostOrBehindItIsRejected) {
  test::Sshd jump, inner;
  const SshSettings settings = through({&jump}, inner);
  for (test::Sshd* changed : {&inner, &jump}) {
    const int before = changed->count("Accepted");
    changed->stop();
    changed->change_host_key();
    changed->start();
    const Error error = error_of([&] { expect_works(*make_ssh_session(settings)); });
    EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("HOST KEY CHANGED"));
    EXPECT_EQ(changed->count("Accepted"), before) << "no credential was sent";
  }
}

TEST_F(SshLink, ManyThreadsShareOneConnection) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  const RemotePath folder(sshd.dir().path().string());
  std::vector<std::jthread> threads;
  for (int t = 0; t < 12; ++t)
    threads.emplace_back([&, t] {
      const std::string name = "t" + std::to_string(t);
      for (int i = 0; i < 10; ++i) {
        write_text_atomic(*session, folder / name, name + std::to_string(i));
        EXPECT_EQ(read_text(*session, folder / name, 100), name + std::to_string(i));
        EXPECT_EQ(run(*session, {"cat", (folder / name).str()}).out, name + std::to_string(i));
      }
    });
  threads.clear();
  EXPECT_EQ(sshd.connections(), 1);
}

// A coordinator keeps a session to each of a hundred facilities for days. A window's buffer would
// be 8 MiB.
TEST_F(SshLink, AnIdleSessionHoldsNoBufferOfAWindow) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate additional memory";
#endif
  test::Sshd sshd;
  EXPECT_LT(resident_kib_of_an_idle_session(sshd.settings()), 2048);
}

// A tunnel through a jump host has a window of 16 MiB.
TEST_F(SshLink, AnIdleSessionThroughAJumpHostHoldsNoBufferOfAWindow) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate additional memory";
#endif
  test::Sshd jump, inner;
  EXPECT_LT(resident_kib_of_an_idle_session(through({&jump}, inner)), 4096);
}

// A busy Lustre may need minutes for one folder, longer than a command may run.
TEST_F(SshLink, RemovesAFolderThatTakesLongerThanACommandMayRun) {
  test::TempDir dir;
  write_file_atomic(dir / "rm",
                    "#!/bin/sh\nfor folder; do :; done\n"
                    "for file in \"$folder\"/*; do sleep 0.7; /bin/rm \"$file\"; done\n"
                    "exec /bin/rm -d \"$folder\"\n",
                    0755);
  make_dirs(dir / "r0001");
  for (const char* name : {"a", "b", "c", "d", "e", "f"})
    write_file_atomic(dir / "r0001" / name, "x");
  test::Sshd sshd({.before_login = "PATH=" + dir.path().string() + ":$PATH; export PATH"});
  SshSettings settings = sshd.settings();
  settings.timeouts.operation = 3000ms;
  const auto session = make_ssh_session(settings);
  const auto began = SteadyClock::now();
  session->remove_tree(RemotePath((dir / "r0001").string()));
  EXPECT_FALSE(std::filesystem::exists(dir / "r0001"));
  EXPECT_GT(SteadyClock::now() - began, settings.timeouts.operation)
      << "the removal was too fast for this test";
}

TEST_F(SshLink, AStopRequestDoesNotWaitForTheRemoval) {
  test::TempDir dir;
  write_file_atomic(dir / "rm", "#!/bin/sh\nexec sleep 60\n", 0755);
  make_dirs(dir / "r0001");
  test::Sshd sshd({.before_login = "PATH=" + dir.path().string() + ":$PATH; export PATH"});
  SshSettings settings = sshd.settings();
  settings.timeouts.operation = 6000ms;
  const auto session = make_ssh_session(settings);
  std::stop_source stop;
  const auto began = SteadyClock::now();
  std::jthread stopper([&] {
    std::this_thread::sleep_for(500ms);
    stop.request_stop();
  });
  const Error error = error_of(
      [&] { session->remove_tree(RemotePath((dir / "r0001").string()), stop.get_token()); });
  EXPECT_EQ(error.kind(), ErrorKind::kCancelled) << error.what();
  EXPECT_LT(SteadyClock::now() - began, 30s) << "thirty runs of 4 s each";
}

TEST_F(SshLink, AHostWithoutSha256sumHasNoHashes) {
  test::TempDir dir;
  write_file_atomic(dir / "sha256sum", "#!/bin/sh\nexit 127\n", 0755);
  write_file_atomic(dir / "file", "text");
  test::Sshd sshd({.before_login = "PATH=" + dir.path().string() + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  const RemotePath file((dir / "file").string());
  EXPECT_FALSE(session->sha256(file, 0, 4));
  EXPECT_FALSE(session->block_hashes(file, 0, 4, 2));
}

TEST_F(SshLink, WhereCommandsCannotPutFilesTheyGoOneByOne) {
  test::TempDir dir;
  write_file_atomic(dir / "sync", "#!/bin/sh\nexit 1\n", 0755);
  test::Sshd sshd({.before_login = "PATH=" + dir.path().string() + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  const std::vector<NewFile> files = {{"one", "1"}, {"two", "22"}};
  session->put_files(RemotePath((dir / "files").string()), files);
  EXPECT_EQ(read_file(dir / "files/one", 100), "1");
  EXPECT_EQ(read_file(dir / "files/two", 100), "22");
}

// Behind the noise SFTP does not work. After a crash of the file server a name has its content.
TEST_F(SshLink, CommandsMakeFilesAndNamesDurable) {
  test::TempDir dir;
  const std::string here = dir.path().string();
  write_file_atomic(dir / "sync",
                    "#!/bin/sh\ncd " + here + "\necho \"$1:\" $(ls -d one two 2>/dev/null) >>log\n",
                    0755);
  test::Sshd sshd({.before_login = "echo noise; PATH=" + here + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  const RemotePath folder(here);
  session->write(folder / "one", 0, {});
  session->sync(folder / "one");
  session->rename(folder / "one", folder / "two");
  EXPECT_EQ(read_file(dir / "log", 1000), here + "/one: one\n" + here + ": two\n");
}

// Behind the noise SFTP does not work.
TEST_F(SshLink, WhereStatDoesNotStartNoFileIsAbsent) {
  test::TempDir dir;
  const std::string here = dir.path().string();
  test::Sshd sshd({.before_login = "echo noise; PATH=" + here + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  const RemotePath key(sshd.key().string());
  EXPECT_TRUE(session->stat(key));
  EXPECT_FALSE(session->stat(key.parent() / "absent"));
  for (const char* status : {"126", "127"}) {
    write_file_atomic(dir / "stat",
                      std::string("#!/bin/sh\necho 'libacl.so: No such file or directory' >&2\n") +
                          "exit " + status + "\n",
                      0755);
    const Error error = error_of([&] { session->stat(key); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("libacl.so"));
  }
  write_file_atomic(dir / "stat", "#!/bin/sh\necho 'stat: Stale file handle' >&2\nexit 1\n", 0755);
  EXPECT_EQ(error_of([&] { session->stat(key); }).kind(), ErrorKind::kIo);
}

// Behind the noise SFTP does not work. The patterns of a shell match no name in a folder that the
// account cannot read.
TEST_F(SshLink, AFolderThatCommandsCannotReadIsNotEmpty) {
  test::TempDir dir;
  const std::string here = dir.path().string();
  test::Sshd sshd({.before_login = "echo noise; PATH=" + here + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  EXPECT_TRUE(session->list(RemotePath(here)).empty());
  write_file_atomic(dir / "ls", "#!/bin/sh\necho 'ls: Permission denied' >&2\nexit 2\n", 0755);
  const Error error = error_of([&] { session->list(RemotePath(here)); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("Permission denied"));
}

TEST_F(SshLink, WaitsForASlowLogInShell) {
  test::Sshd sshd({.before_login = "sleep 2; printf '\\033[2Jmotd\\r\\n'; echo more >&2"});
  const auto session = make_ssh_session(sshd.settings());
  const auto result = run(*session, {"sh", "-c", "echo out; echo err >&2"});
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST_F(SshLink, WorksWithEveryLogInShell) {
  for (const char* shell : {"/bin/dash", "/bin/bash", "/bin/tcsh", "/usr/bin/fish"}) {
    if (!std::filesystem::exists(shell)) continue;
    test::Sshd sshd({.before_login = "echo noise", .login_shell = shell});
    const auto session = make_ssh_session(sshd.settings());
    const std::string word = "a'b\\!\n\"$x`";
    EXPECT_EQ(run(*session, {"printf", "%s", word}).out, word) << shell;
  }
}

TEST_F(SshLink, ReportsAHostWithoutAShell) {
  test::Sshd sshd({.sftp_only = true});
  auto settings = sshd.settings();
  settings.shell = true;
  const Error error = error_of([&] { expect_works(*make_ssh_session(settings)); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote);
  EXPECT_THAT(error.what(), HasSubstr("shell: false"));
}

TEST_F(SshLink, CreatesPrivateFilesAndDoesNotFollowLinks) {
  // Both SFTP and commands, commands where SFTP does not work, and SFTP alone.
  const std::vector<test::SshdOptions> servers = {
      {}, {.before_login = "umask 022; echo Welcome"}, {.sftp_only = true}};
  for (const test::SshdOptions& options : servers) {
    test::Sshd sshd(options);
    const auto session = make_ssh_session(sshd.settings());
    const RemotePath folder(sshd.dir().path().string());
    session->make_dirs(folder / "a/b");
    session->write(folder / "a/b/file", 0, {});
    using std::filesystem::perms;
    EXPECT_EQ(std::filesystem::status(sshd.dir() / "a/b").permissions(), perms(0700));
    EXPECT_EQ(std::filesystem::status(sshd.dir() / "a/b/file").permissions(), perms(0600));
    std::filesystem::create_symlink(sshd.dir() / "id", sshd.dir() / "a/link");
    std::vector<std::byte> buffer(4);
    EXPECT_EQ(session->stat(folder / "a/link")->type, FileInfo::Type::kOther);
    EXPECT_EQ(error_of([&] { session->read(folder / "a/link", 0, buffer); }).kind(),
              ErrorKind::kIo);
    EXPECT_EQ(error_of([&] { session->write(folder / "a/link", 0, buffer); }).kind(),
              ErrorKind::kIo);
    EXPECT_EQ(error_of([&] { session->download(folder / "a/link", 0, 4, [](auto) {}, {}); }).kind(),
              ErrorKind::kIo);
    const std::string key = read_file(sshd.key(), 10'000);
    EXPECT_EQ(
        error_of([&] { session->upload(folder / "a/link", 0, 4, [](auto...) {}, {}); }).kind(),
        ErrorKind::kIo);
    EXPECT_EQ(read_file(sshd.key(), 10'000), key);
    session->remove_tree(folder / "a");
    EXPECT_TRUE(std::filesystem::exists(sshd.dir() / "id"));
    const uint64_t free = std::filesystem::space(folder.str()).available;
    EXPECT_GT(session->free_bytes(folder).value(), free / 2);
    EXPECT_LT(session->free_bytes(folder).value(), free * 2);
  }
}

// Many sites link a folder of the scratch file system into the home folder.
TEST_F(SshLink, AWorkFolderMayBeALink) {
  test::Sshd sshd;
  std::filesystem::create_directory(sshd.dir() / "scratch");
  std::filesystem::create_directory_symlink(sshd.dir() / "scratch", sshd.dir() / "work");
  const auto session = make_ssh_session(sshd.settings());
  const RemotePath work((sshd.dir() / "work").string());
  session->make_dirs(work);
  session->make_dirs(work / "r0001");
  EXPECT_TRUE(std::filesystem::is_directory(sshd.dir() / "scratch/r0001"));
}

// sshd's log at this level has a line for each request of the client.
TEST_F(SshLink, RequestsNoForwardingAndNoTerminal) {
  test::Sshd sshd({.config = {"LogLevel DEBUG1", "AllowAgentForwarding yes", "X11Forwarding yes"}});
  ::setenv("DISPLAY", "localhost:10.0", 1);
  const auto session = make_ssh_session(sshd.settings());
  expect_works(*session);
  const test::TempDir dir;
  numbered_file(dir / "file", 3'000'000);
  upload(*session, dir / "file", sshd.dir() / "copy");
  session->list(RemotePath(sshd.dir().path().string()));
  ::unsetenv("DISPLAY");
  EXPECT_GT(sshd.count("request exec") + sshd.count("request subsystem"), 0) << sshd.log();
  for (const char* request : {"auth-agent-req", "x11-req", "pty-req", "tcpip-forward",
                              "streamlocal-forward", "request env", "request shell"})
    EXPECT_EQ(sshd.count(request), 0) << request;
}

// Sites kill processes of login nodes that use much CPU time; xffl's commands need little.
TEST_F(SshLink, NoCommandNeedsTwoSecondsOfCpuTime) {
  test::Sshd sshd({.before_login = "ulimit -t 2"});
  const auto session = make_ssh_session(sshd.settings());
  EXPECT_NE(run(*session, {"sh", "-c", "while :; do :; done"}).exit_code, 0);  // the limit holds
  const test::TempDir dir;
  const std::string hash = numbered_file(dir / "file", 64u << 20);  // one chunk of a transfer
  const auto copy = sshd.dir() / "copy";
  const RemotePath remote(copy.string());
  upload(*session, dir / "file", copy);
  EXPECT_EQ(session->sha256(remote, 0, 64u << 20), hash);
  EXPECT_EQ(download_hash(*session, copy), hash);
  std::vector<NewFile> files;
  for (int i = 0; i < 50; ++i) files.push_back({"file" + std::to_string(i), "text"});
  const RemotePath folder = remote.parent() / "small";
  session->make_dirs(folder);
  session->put_files(folder, files);
  std::vector<FileQuery> queries;
  for (const NewFile& file : files) queries.push_back({file.name, 100});
  EXPECT_EQ(session->look(folder, queries).back().bytes, "text");
  session->remove_tree(folder);
}

}  // namespace
}  // namespace xffl::remote
