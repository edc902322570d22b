// SIGTERM, SIGINT and SIGHUP: in every state the coordinator detaches within ten seconds, its jobs
// keep running, and the same command continues the run as if nothing had happened.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <thread>

#include "e2e/project.h"
#include "support/hostile_server.h"
#include "support/sshd.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;
using test::await;
using test::Project;
using test::StartedRun;
using testing::HasSubstr;

constexpr double kLimit = 10;  // seconds, as docs/developer/faults.md promises
const std::vector<std::string> kOneRound = {"alba 1 1", "brno 1 1"};
constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};

double seconds_since(SteadyClock::time_point began) {
  return std::chrono::duration<double>(SteadyClock::now() - began).count();
}

// Sends the signal and expects the end of the coordinator within the limit.
void expect_detached(StartedRun& run, int signal, const std::string& state) {
  const auto asked = SteadyClock::now();
  run.signal(signal);
  EXPECT_EQ(run.finish(60s), exit_code(ErrorKind::kCancelled)) << state << ", signal " << signal;
  const double waited = seconds_since(asked);
  std::cout << state << ", signal " << signal << ": detached after " << waited << " s\n";
  EXPECT_LT(waited, kLimit) << state;
}

bool is_running(const std::string& job) { return process_start_ticks(std::stoi(job)).has_value(); }

std::string status_of(const Project& project) {
  return project.xffl({"status", "-p", project.path().string()}).out;
}

bool await_status(const Project& project, const std::string& text) {
  return await([&] { return status_of(project).find(text) != std::string::npos; });
}

// brno is reached through SSH; its Slurm does not exist, so that no job is submitted there.
void place_behind_ssh(Project& project, const remote::SshSettings& settings,
                      const std::string& more = "") {
  project.place("brno",
                {"    access: ssh\n    ssh: {hosts: ['127.0.0.1:" +
                     std::to_string(settings.hosts.front().port) + "'], user: " + settings.user +
                     ", keys: ['" + settings.keys.front().string() + "'], agent: false" + more +
                     "}\n    scheduler: slurm\n    slurm: {}\n    workdir: " +
                     (project.path() / "work-brno").string() + "\n",
                 project.path() / "trainings.log", project.path() / "trainings.log"});
  write_file_atomic(project.path() / "known_hosts", read_file(settings.known_hosts, 10'000));
}

class Signal : public testing::Test {
 protected:
  Signal() {
    project_.set_rounds(1);
    project_.write_config();
  }

  /// The run completes, with each training started once.
  void expect_completion() {
    project_.release();
    const ProcessResult again = project_.run();
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(project_.trainings(), kOneRound);
    EXPECT_EQ(project_.started_trainings(), kOneRound);
    EXPECT_EQ(project_.current_sha256(), expected());
  }

  /// Waits until a coordinator holds the journal.
  bool await_coordinator() const {
    return await(
        [&] { return !history::lock_holder(project_.run_folder() / "journal.db").empty(); });
  }

  /// brno, whose host has no Slurm, leaves the run. alba's round completes, trained once.
  void expect_completion_without_brno() {
    const std::string path = project_.path().string();
    ASSERT_EQ(project_.xffl({"leave", "-p", path, "--now", "brno"}).exit_code, 0);
    const ProcessResult again = project_.run();
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(project_.trainings(), std::vector<std::string>{"alba 1 1"});
    EXPECT_EQ(project_.started_trainings(), std::vector<std::string>{"alba 1 1"});
    EXPECT_EQ(project_.count_events("published"), 1);
  }

  /// The model of an undisturbed run of the same project, with local facilities.
  std::string expected() const {
    Project other;
    other.set_rounds(1);
    other.write_config();
    EXPECT_EQ(other.run().exit_code, 0);
    return other.current_sha256();
  }

  Project project_;
};

TEST_F(Signal, EndsAWaitForRunningJobs) {
  for (const int number : kSignals) {
    auto run = project_.start_held_run();
    for (const char* name : {"alba", "brno"}) ASSERT_TRUE(project_.await_held_training(name));
    expect_detached(run, number, "running jobs");
    EXPECT_EQ(status_of(project_).find(": running,"), std::string::npos) << status_of(project_);
    for (const char* name : {"alba", "brno"})
      for (const std::string& job : project_.jobs(name)) EXPECT_TRUE(is_running(job)) << name;
    expect_completion();
    project_.forget_runs();
  }
}

// The terminal is closed: SIGHUP, and every write to the terminal fails.
TEST_F(Signal, SurvivesAClosedTerminal) {
  project_.set_hold();
  project_.write_config();
  StartedRun terminal(start_detached(
      {.argv = {"script", "-qec",
                std::string(XFFL_BINARY_DIR "/bin/xffl run -p ") + project_.path().string() +
                    "; echo code $? > " + (project_.path() / "code").string(),
                "/dev/null"}},
      project_.log()));
  ASSERT_TRUE(project_.await_events("submitted", 2)) << read_file(project_.log(), 100'000);
  const auto closed = SteadyClock::now();
  terminal.kill();
  EXPECT_TRUE(
      await([&] { return history::lock_holder(project_.run_folder() / "journal.db").empty(); }));
  std::cout << "closed terminal: detached after " << seconds_since(closed) << " s\n";
  EXPECT_LT(seconds_since(closed), kLimit);
  for (const char* name : {"alba", "brno"})
    for (const std::string& job : project_.jobs(name)) EXPECT_TRUE(is_running(job)) << name;
  expect_completion();
}

// The reader of the output stands still (`| less`, Ctrl-S, a link that is dead but not closed), so
// that each thread that logs waits.
TEST_F(Signal, EndsARunWhoseOutputNobodyReads) {
  project_.set_hold();
  project_.write_config();
  const fs::path output = project_.path() / "output";
  ASSERT_EQ(::mkfifo(output.c_str(), 0600), 0);
  const UniqueFd reader(::open(output.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader);
  StartedRun run(start_detached(
      {.argv = {"sh", "-c", R"(exec "$0" run -v -p "$1" >"$2" 2>&1)", XFFL_BINARY_DIR "/bin/xffl",
                project_.path().string(), output.string()}},
      project_.log()));
  for (const char* name : {"alba", "brno"}) ASSERT_TRUE(project_.await_held_training(name));
  while (::write(reader.get(), "x", 1) == 1) {
  }
  std::this_thread::sleep_for(1s);  // further lines
  expect_detached(run, SIGTERM, "output that nobody reads");
  for (const char* name : {"alba", "brno"})
    for (const std::string& job : project_.jobs(name)) EXPECT_TRUE(is_running(job)) << name;
  expect_completion();
}

// The reader, as `tee` in `xffl run | tee FILE`, has ended before xffl starts.
TEST_F(Signal, ARunOutlivesTheReaderOfItsOutput) {
  const std::string script = R"({ (trap '' PIPE; while echo; do sleep 0.05; done) 2>/dev/null
                                  "$0" run -p "$1"; } 2>&1 | :)";
  const ProcessResult shell = run_process(
      {.argv = {"sh", "-c", script, XFFL_BINARY_DIR "/bin/xffl", project_.path().string()},
       .timeout = 180s});
  EXPECT_EQ(shell.exit_code, 0) << shell.err;
  EXPECT_TRUE(project_.history().completed);
  EXPECT_EQ(project_.trainings(), kOneRound);
}

// A host that accepts connections and sends nothing.
class SilentHost {
 public:
  SilentHost() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
    EXPECT_EQ(::listen(fd_.get(), 8), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
    port_ = ntohs(name.sin_port);
  }
  /// Waits for the next connection, and keeps it open until the one after it.
  bool await_client() {
    pollfd wait{fd_.get(), POLLIN, 0};
    if (::poll(&wait, 1, 120'000) != 1) return false;
    client_ = UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return static_cast<bool>(client_);
  }
  void close_client() { client_ = UniqueFd(); }
  /// Places brno there; the coordinator trusts the host's key.
  void take(Project& project) const {
    const fs::path key = project.path() / "key";
    ASSERT_EQ(
        run_process({.argv = {"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key}}).exit_code,
        0);
    write_file_atomic(project.path() / "trusted", "[127.0.0.1]:" + std::to_string(port_) + " " +
                                                      read_file(key.string() + ".pub", 10'000));
    remote::SshSettings settings;
    settings.hosts = {{"127.0.0.1", port_}};
    settings.user = "ann";
    settings.keys = {key};
    settings.known_hosts = project.path() / "trusted";
    place_behind_ssh(project, settings);
    project.write_config();
  }

 private:
  UniqueFd fd_, client_;
  int port_ = 0;
};

// The host's time limits exceed an operator's patience.
TEST_F(Signal, EndsAWaitForASilentHost) {
  SilentHost host;
  host.take(project_);
  for (const int number : kSignals) {
    auto run = project_.start_run();
    ASSERT_TRUE(host.await_client()) << read_file(project_.log(), 100'000);
    expect_detached(run, number, "silent host");
  }
  fs::remove(project_.log());
  auto again = project_.start_run();
  ASSERT_TRUE(host.await_client()) << read_file(project_.log(), 100'000);
  again.signal(SIGTERM);
  EXPECT_TRUE(await([&] {
    return read_file(project_.log(), 100'000).find("a second signal") != std::string::npos;
  }));
  const auto asked = SteadyClock::now();
  again.signal(SIGINT);
  EXPECT_EQ(again.finish(60s), 130);
  EXPECT_LT(seconds_since(asked), 5) << "the second signal is obeyed at once";
  expect_completion_without_brno();
}

// The host closes each connection. After the third one the pause is several seconds.
TEST_F(Signal, EndsABackOff) {
  SilentHost host;
  host.take(project_);
  for (const int number : kSignals) {
    auto run = project_.start_run();
    for (int failures = 0; failures < (number == SIGTERM ? 3 : 1); ++failures) {
      ASSERT_TRUE(host.await_client()) << read_file(project_.log(), 100'000);
      host.close_client();
    }
    ASSERT_TRUE(await_status(project_, "retrying")) << status_of(project_);
    expect_detached(run, number, "back-off");
  }
  expect_completion_without_brno();
}

// Authentication is refused: the facility is paused until the credential changes.
TEST_F(Signal, EndsAPauseForAuthentication) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  test::Sshd sshd({.authorize_key = false});
  place_behind_ssh(project_, sshd.settings());
  project_.write_config();
  for (const int number : kSignals) {
    auto run = project_.start_run();
    ASSERT_TRUE(await_status(project_, "authentication needed")) << status_of(project_);
    expect_detached(run, number, "authentication needed");
  }
  expect_completion_without_brno();
}

// sshd accepts the connection and its log-in takes longer than ten seconds.
TEST_F(Signal, EndsALogIn) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  test::Sshd sshd;
  place_behind_ssh(project_, sshd.settings());
  project_.write_config();
  std::atomic<bool> frozen = false;
  std::jthread freezer([&](const std::stop_token& stop) {  // in the midst of the key exchange
    while (!stop.stop_requested()) {
      for (const pid_t pid : sshd.session_processes())
        if (::kill(pid, SIGSTOP) == 0) frozen = true;
      std::this_thread::sleep_for(1ms);
    }
  });
  auto run = project_.start_run();
  // The log of sshd is no sign of it: its session may be frozen before it writes there.
  ASSERT_TRUE(await([&] { return frozen.load(); })) << read_file(project_.log(), 100'000);
  expect_detached(run, SIGHUP, "log-in");
  freezer.request_stop();
  freezer.join();
  for (const pid_t pid : sshd.session_processes()) ::kill(pid, SIGKILL);
  expect_completion_without_brno();
}

TEST_F(Signal, EndsAPause) {
  auto run = project_.start_held_run();
  ASSERT_EQ(project_.xffl({"pause", "-p", project_.path().string(), "alba", "brno"}).exit_code, 0);
  ASSERT_TRUE(project_.await_events("facility_paused", 2));
  expect_detached(run, SIGTERM, "paused by a user, with jobs");
  for (const int number : {SIGINT, SIGHUP}) {
    auto again = project_.start_run();
    ASSERT_TRUE(await_coordinator());
    ASSERT_TRUE(await_status(project_, "PAUSED")) << status_of(project_);
    expect_detached(again, number, "paused by a user, with jobs");
  }
  ASSERT_EQ(project_.xffl({"resume", "-p", project_.path().string()}).exit_code, 0);
  expect_completion();

  project_.forget_runs();
  ASSERT_EQ(project_.run({{"XFFL_FAILPOINT", "journal:after:4"}}).exit_code, 128 + SIGKILL);
  ASSERT_EQ(project_.xffl({"pause", "-p", project_.path().string(), "alba", "brno"}).exit_code, 0);
  auto paused = project_.start_run();
  ASSERT_TRUE(await_coordinator());
  ASSERT_TRUE(await_status(project_, "PAUSED")) << status_of(project_);
  expect_detached(paused, SIGTERM, "paused by a user, without jobs");
  EXPECT_TRUE(project_.started_trainings().empty());
  ASSERT_EQ(project_.xffl({"resume", "-p", project_.path().string()}).exit_code, 0);
  expect_completion();
}

// The facility reads one byte a minute. TestbedSignals has a fetch, and the later completion.
TEST_F(Signal, EndsAPush) {
  if (!test::HostileServer::missing().empty()) GTEST_SKIP() << test::HostileServer::missing();
  test::HostileServer server;
  server.set([](const std::string& command) {
    return command.find("dd of=") == std::string::npos
               ? test::HostileServer::Behaviour{}
               : test::HostileServer::Behaviour{.takes_per_second = 1.0 / 60};
  });
  project_.set_model_rows(600'000);  // 9.6 MB: a stream of its own
  place_behind_ssh(project_, server.settings());
  project_.write_config();
  auto run = project_.start_run();
  ASSERT_TRUE(await([&] { return server.channels("dd of=") > 0; })) << status_of(project_);
  expect_detached(run, SIGINT, "push");
  expect_completion_without_brno();
}

// The disk stops answering during the mean: no call can be interrupted then, and the coordinator
// ends all the same.
TEST_F(Signal, EndsAMeanOnAHangingDisk) {
  const fs::path note = project_.path() / "hangs";
  auto run = project_.start_run({{"LD_PRELOAD", XFFL_BINARY_DIR "/bin/xffl-hanging-disk.so"},
                                 {"XFFL_HANG_FOR", "/r0001/master"},
                                 {"XFFL_HANG_NOTE", note.string()}});
  ASSERT_TRUE(await([&] { return fs::exists(note); })) << read_file(project_.log(), 100'000);
  EXPECT_EQ(project_.count_events("participants_frozen"), 1);
  expect_detached(run, SIGTERM, "mean on a hanging disk");
  EXPECT_EQ(project_.count_events("aggregated"), 0);
  expect_completion();
}

}  // namespace
}  // namespace xffl
