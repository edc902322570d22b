// Faults of the coordinator's machine: system calls fail, the wall clock jumps. The run loses
// nothing and trains nothing twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "e2e/project.h"
#include "support/lossy_disk.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::expect_undisturbed_result;
using test::Project;
using testing::HasSubstr;

// --- failing system calls ------------------------------------------------------------------------

// The calls that change the disk or start a process.
constexpr const char* kEffects =
    "openat,write,writev,pwrite64,fsync,fdatasync,ftruncate,fallocate,rename,renameat,renameat2,"
    "unlink,unlinkat,rmdir,mkdir,symlink,link,linkat,fchmod,sendfile,copy_file_range,vfork,clone3";

// The calls of these that a read-only file system refuses.
constexpr const char* kChanges =
    "openat,write,writev,pwrite64,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,"
    "rmdir,mkdir,symlink,link,linkat,fchmod,sendfile,copy_file_range";

// Disturbs one system call of a coordinator, counted over all its threads (call_faults.cc).
class CallFaults {
 public:
  explicit CallFaults(const Project& project) : project_(project) {}
  static bool works() {
    const test::TempDir dir;
    const ProcessResult result =
        run_process({.argv = {XFFL_BINARY_DIR "/bin/xffl-call-faults", dir / "out", "openat", "0",
                              "kill", "true"}});
    return result.exit_code == 0 && fs::exists(dir / "out");
  }

  ProcessResult run(const std::string& calls, int when, const std::string& action,
                    std::map<std::string, std::string> env = {}) {
    const ProcessResult result =
        run_process({.argv = {XFFL_BINARY_DIR "/bin/xffl-call-faults", dir_ / "out", calls,
                              std::to_string(when), action, XFFL_BINARY_DIR "/bin/xffl", "run",
                              "-p", project_.path().string()},
                     .env = std::move(env),
                     .timeout = std::chrono::seconds(120)});
    read_outcome();
    in_other_threads_ += thread_ == "other";
    return result;
  }
  /// Starts a run whose calls that change the run folders fail from the `when`-th one on. Its
  /// output goes to Project::log(). SIGTERM reaches the coordinator.
  test::StartedRun start_failing(const std::string& calls, int when, const std::string& error) {
    return test::StartedRun(
        start_detached({.argv = {XFFL_BINARY_DIR "/bin/xffl-call-faults", dir_ / "out", calls,
                                 std::to_string(when) + "+", error, XFFL_BINARY_DIR "/bin/xffl",
                                 "run", "-p", project_.path().string()},
                        .env = below()},
                       project_.log()));
  }
  /// Only calls count that change a file of a run folder.
  std::map<std::string, std::string> below() const {
    return {{"XFFL_CALL_FAULTS_BELOW", (project_.path() / "runs").string()}};
  }
  /// The calls of an undisturbed run.
  int count(const std::string& calls, std::map<std::string, std::string> env = {}) {
    EXPECT_EQ(run(calls, 0, "kill", std::move(env)).exit_code, 0);
    return count_;
  }
  /// For a run of start_failing(), after its end.
  void read_outcome() { std::ifstream(dir_ / "out") >> count_ >> thread_; }
  /// Whether the last run made enough calls to be disturbed.
  bool disturbed() const { return thread_ != "none"; }
  int in_other_threads() const { return in_other_threads_; }

 private:
  const Project& project_;
  const test::TempDir dir_;
  int count_ = 0, in_other_threads_ = 0;
  std::string thread_;
};

class SystemCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (!CallFaults::works()) GTEST_SKIP() << "this machine does not allow ptrace, or is no x86-64";
    expected_ = test::undisturbed_sha256(project_);
  }
  static bool all() { return std::getenv("XFFL_CAMPAIGN") != nullptr; }
  /// The numbers of the calls of a sample; with XFFL_CAMPAIGN=N of every N-th call, and with
  /// XFFL_CAMPAIGN_PART=2/4 of the second quarter of these, which are dealt out in turn.
  static std::vector<int> sample(int count, int size) {
    std::vector<int> chosen;
    const int step = std::max(1, all() ? std::atoi(std::getenv("XFFL_CAMPAIGN")) : count / size);
    for (int n = std::max(1, step / 2); n <= count; n += step) chosen.push_back(n);
    int part = 1, parts = 1;
    if (const char* text = std::getenv("XFFL_CAMPAIGN_PART"); text != nullptr && all())
      std::sscanf(text, "%d/%d", &part, &parts);
    std::vector<int> dealt;
    for (size_t i = 0; i < chosen.size(); ++i)
      if (static_cast<int>(i) % parts == part - 1) dealt.push_back(chosen[i]);
    return dealt;
  }

  // The coordinator continues or ends with an error message; the same command then completes the
  // run. False when the run made fewer than `n` calls.
  bool expect_survival(const std::string& call, int n, const std::string& error) {
    const std::string context = call + " " + std::to_string(n) + ": " + error;
    const ProcessResult broken = faults_.run(call, n, error);
    const bool disturbed = faults_.disturbed();
    EXPECT_FALSE(broken.timed_out) << context;
    if (broken.exit_code != 0) {
      EXPECT_LT(broken.exit_code, 128) << context << ": killed; " << broken.err;
      EXPECT_NE(broken.exit_code, exit_code(ErrorKind::kInternal)) << context << broken.err;
      EXPECT_THAT(broken.err, HasSubstr("xffl: error (")) << context;
    }
    const ProcessResult resumed = project_.run();
    EXPECT_EQ(resumed.exit_code, 0) << context << resumed.err;
    expect_undisturbed_result(project_, expected_, context);
    project_.forget_runs();
    return disturbed;
  }

  Project project_;
  CallFaults faults_{project_};
  std::string expected_;
};

// SIGKILL before a system call that changes the disk or starts a process, in any thread: a sample
// of the calls, or with XFFL_CAMPAIGN all of them.
TEST_F(SystemCalls, AKillBeforeAnyOfThemChangesNothing) {
  const int count = faults_.count(kEffects);
  project_.forget_runs();
  int kills = 0;
  for (const int n : sample(count, 9)) {
    const ProcessResult killed = faults_.run(kEffects, n, "kill");
    const std::string context = "killed before call " + std::to_string(n);
    if (faults_.disturbed()) {
      EXPECT_EQ(killed.exit_code, 128 + SIGKILL) << context << killed.err;
      ++kills;
    }
    const ProcessResult resumed = project_.run();
    EXPECT_EQ(resumed.exit_code, 0) << context << resumed.err;
    expect_undisturbed_result(project_, expected_, context);
    project_.forget_runs();
    if (HasFailure() && !all()) return;
  }
  std::cout << kills << " kills at system calls, " << faults_.in_other_threads()
            << " of them in other threads than the main one; the run has " << count
            << " such calls\n";
  EXPECT_GE(kills, 8);
  EXPECT_GE(faults_.in_other_threads(), 3);
}

// Fails a sample of the calls of all threads; with XFFL_CAMPAIGN every call.
TEST_F(SystemCalls, EachSingleFailureLosesNothing) {
  struct Kind {
    std::string call, error;
    int sample;
  };
  int failures = 0, tries = 0;
  for (const Kind& kind : {Kind{"fsync", "EIO", 3},
                           {"fdatasync", "EIO", 2},
                           {"pwrite64", "ENOSPC", 2},
                           {"pwrite64", "EDQUOT", 1},
                           {"write", "ENOSPC", 2},
                           {"rename,renameat2", "ENOSPC", 2},
                           {"mkdir", "ENOSPC", 1},
                           {"ftruncate", "EIO", 1},
                           {"openat", "EMFILE", 2},
                           {"openat", "EROFS", 1},
                           {"vfork,clone3", "EAGAIN", 1}}) {
    const int count = faults_.count(kind.call);
    project_.forget_runs();
    ASSERT_GT(count, 0) << kind.call;
    std::vector<int> chosen = sample(count, kind.sample);
    if (kind.error == "EAGAIN" && !all()) chosen.push_back(1);  // before the run's own handler
    for (const int n : chosen) {
      ++tries;
      failures += expect_survival(kind.call, n, kind.error) ? 1 : 0;
      if (HasFailure() && !all()) return;
    }
  }
  std::cout << failures << " system calls failed in " << tries << " runs, "
            << faults_.in_other_threads() << " of them in other threads than the main one\n";
  EXPECT_GE(failures, tries * 3 / 4);  // two runs differ in the number of their calls
  EXPECT_GE(faults_.in_other_threads(), 4);
}

// After a failed sync the content of the disk is unknown. At least one of three syncs in a row is
// that of a commit; SQLite itself repeats the sync of a checkpoint.
TEST_F(SystemCalls, AFailedSyncOfTheJournalEndsTheRun) {
  const std::map<std::string, std::string> log = {
      {"XFFL_CALL_FAULTS_BELOW", (project_.path() / "runs/0001/journal.db-wal").string()}};
  const int count = faults_.count("fsync,fdatasync", log);
  project_.forget_runs();
  ASSERT_GT(count, 20);
  int ended = 0;
  for (const int n : {count / 2, count / 2 + 1, count / 2 + 2}) {
    const std::string context = "sync " + std::to_string(n) + "\n";
    const ProcessResult broken = faults_.run("fsync,fdatasync", n, "EIO", log);
    EXPECT_TRUE(faults_.disturbed()) << context << broken.err;
    if (broken.exit_code != 0) {
      ++ended;
      EXPECT_THAT(broken.err, HasSubstr("journal.db")) << context;
    }
    const ProcessResult resumed = project_.run();
    EXPECT_EQ(resumed.exit_code, 0) << context << resumed.err;
    expect_undisturbed_result(project_, expected_, context);
    project_.forget_runs();
  }
  EXPECT_GE(ended, 1);
}

// A message about a file system that refuses a change.
bool is_of_disk(const std::string& line) {
  const bool is_problem = line.starts_with("xffl: error (") ||
                          line.find(" warning ") != std::string::npos ||
                          line.find(" error ") != std::string::npos;
  const auto has = [&](const char* text) { return line.find(text) != std::string::npos; };
  return is_problem &&
         (has("Read-only file system") || has("No space left") || has("disk I/O error") ||
          has("unable to open database") || has("readonly database") || has("disk is full"));
}

// From a call on, the file system of the run folders stays read-only or full. The coordinator ends,
// or waits for the file system until SIGTERM; in both cases there is a message, and each message
// names a path there. With the file system back the same command completes the run.
TEST_F(SystemCalls, AFileSystemThatStaysReadOnlyOrFullIsNamed) {
  struct Kind {
    std::string calls, error;
    int sample;
  };
  const std::string runs = (project_.path() / "runs").string();
  int ended = 0, stopped = 0;
  for (const Kind& kind :
       {Kind{kChanges, "EROFS", 3},
        Kind{"openat,write,writev,pwrite64,mkdir,fallocate,ftruncate,copy_file_range", "ENOSPC",
             2}}) {
    const int count = faults_.count(kind.calls, faults_.below());
    project_.forget_runs();
    ASSERT_GT(count, 100) << kind.calls;
    for (const int n : sample(count, kind.sample)) {
      const std::string context = kind.error + " from call " + std::to_string(n) + " on\n";
      fs::remove(project_.log());
      test::StartedRun run = faults_.start_failing(kind.calls, n, kind.error);
      const auto log = [&] { return read_file(project_.log(), 16 << 20); };
      const auto messages = [&] {
        std::vector<std::string> found;
        std::istringstream lines(log());
        for (std::string line; std::getline(lines, line);)
          if (is_of_disk(line)) found.push_back(line);
        return found;
      };
      const auto has_ended = [&] {
        siginfo_t state{};
        ::waitid(P_PID, static_cast<id_t>(run.pid()), &state, WEXITED | WNOWAIT | WNOHANG);
        return state.si_pid == run.pid();
      };
      EXPECT_TRUE(test::await([&] { return has_ended() || !messages().empty(); }))
          << context << log();
      // SIGTERM may meet a run that is about to end with its error.
      run.signal(SIGTERM);
      const int code = run.finish();
      (code == exit_code(ErrorKind::kCancelled) ? stopped : ended) += 1;
      EXPECT_TRUE(code < 128 || code == 128 + SIGTERM) << code << context << log();
      EXPECT_NE(code, exit_code(ErrorKind::kInternal)) << context << log();
      faults_.read_outcome();
      EXPECT_EQ(messages().empty(), !faults_.disturbed()) << context << log();
      EXPECT_THAT(messages(), testing::Each(HasSubstr(runs))) << context << log();
      const ProcessResult resumed = project_.run();
      EXPECT_EQ(resumed.exit_code, 0) << context << resumed.err;
      expect_undisturbed_result(project_, expected_, context);
      project_.forget_runs();
      if (HasFailure() && !all()) return;
    }
  }
  std::cout << ended << " runs ended, " << stopped << " waited for the file system\n";
}

// Before a system call the machine loses its power, and with it all data that were not synced.
TEST_F(SystemCalls, ALossOfPowerBeforeAnyOfThemLosesNoRound) {
  const fs::path runs = project_.path() / "runs";
  const auto with_disk = [&](const auto& body) {
    fs::create_directories(runs);
    const test::LossyDisk disk(runs, XFFL_BINARY_DIR "/bin/xffl-lossy-disk.so");
    body(disk);
    project_.forget_runs();
  };
  int count = 0, losses = 0, lost = 0;
  with_disk(
      [&](const test::LossyDisk& disk) { count = faults_.count(kEffects, disk.environment()); });
  for (const int n : sample(count, 4))
    with_disk([&](const test::LossyDisk& disk) {
      const std::string context = "no power before call " + std::to_string(n);
      faults_.run(kEffects, n, "kill", disk.environment());
      losses += faults_.disturbed();
      lost += disk.lose_power();
      const ProcessResult resumed = project_.run();
      EXPECT_EQ(resumed.exit_code, 0) << context << resumed.err;
      expect_undisturbed_result(project_, expected_, context);
    });
  std::cout << losses << " losses of power at system calls, of " << count << "; " << lost
            << " files lost bytes\n";
  EXPECT_GE(losses, 3);
  EXPECT_GT(lost, 0) << "the disk lost nothing: was the library loaded?";
}

// --- a wrong wall clock --------------------------------------------------------------------------

constexpr const char* kFakeTime = "/usr/lib/" XFFL_MULTIARCH "/faketime/libfaketimeMT.so.1";

// The wall clock of `xffl run` is this machine's plus the offset of set(), from that call on. The
// monotonic clock stays correct, as after a step of NTP or by an administrator.
class WrongClock {
 public:
  explicit WrongClock(const Project& project) : project_(project) { set("+0"); }
  static bool there() { return fs::exists(kFakeTime); }
  void set(const std::string& offset) const { write_file_atomic(dir_ / "offset", offset + "\n"); }
  /// libfaketime needs the sign of an offset: a number without one is a date.
  void set(std::chrono::seconds offset) const {
    set((offset.count() < 0 ? "" : "+") + std::to_string(offset.count()));
  }
  test::StartedRun start(const std::string& time_zone = "UTC") const {
    return test::StartedRun(start_detached(
        {.argv = {XFFL_BINARY_DIR "/bin/xffl", "run", "-p", project_.path().string()},
         .env = {{"LD_PRELOAD", kFakeTime},
                 {"FAKETIME_TIMESTAMP_FILE", (dir_ / "offset").string()},
                 {"FAKETIME_NO_CACHE", "1"},
                 {"FAKETIME_DONT_FAKE_MONOTONIC", "1"},
                 {"DONT_FAKE_MONOTONIC", "1"},
                 {"NO_FAKE_STAT", "1"},
                 {"TZ", time_zone}}},
        project_.log()));
  }

 private:
  const Project& project_;
  test::TempDir dir_;
};

class Clock : public testing::Test {
 protected:
  void SetUp() override {
    if (!WrongClock::there())
      GTEST_SKIP() << "there is no " << kFakeTime << " (scripts/bootstrap.sh test)";
    // A deadline of one hour: if a jump of a day counted, every facility would be skipped.
    project_.set_policy("{on_missing: skip, deadline: 1h, poll_interval: 20ms}");
    project_.write_config();
    expected_ = test::undisturbed_sha256(project_);
  }
  std::string day_of_last_event() const { return project_.events().back().time_utc.substr(0, 10); }

  Project project_;
  std::string expected_;
};

TEST_F(Clock, AJumpOfADayEndsNoJobEarly) {
  project_.set_hold();
  project_.write_config();
  const WrongClock clock(project_);
  auto run = clock.start();
  ASSERT_TRUE(project_.await_events("submitted", 2)) << read_file(project_.log(), 1 << 20);
  const std::string day = day_of_last_event();
  const size_t events = project_.events().size();
  for (const char* jump : {"+1d", "-1d", "+0"}) {
    clock.set(jump);
    std::this_thread::sleep_for(std::chrono::milliseconds(700));  // dozens of polls
    EXPECT_EQ(project_.events().size(), events) << jump;
  }
  clock.set("+1d");
  project_.release();
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
  EXPECT_NE(day_of_last_event(), day) << "the fake clock had no effect";
  expect_undisturbed_result(project_, expected_, "jumps");
}

TEST_F(Clock, AWrongClockChangesNothing) {
  for (const char* offset : {"+1d", "-1d"}) {
    const WrongClock clock(project_);
    clock.set(offset);
    auto run = clock.start();
    EXPECT_EQ(run.finish(), 0) << offset << read_file(project_.log(), 1 << 20);
    expect_undisturbed_result(project_, expected_, offset);
    project_.forget_runs();
  }
}

// The coordinator is killed and continues with another clock. Events keep their order, although
// their times run backwards.
TEST_F(Clock, MayStepBackBetweenTwoCoordinators) {
  project_.set_hold();
  project_.write_config();
  const WrongClock clock(project_);
  clock.set("+1d");
  auto run = clock.start();
  ASSERT_TRUE(project_.await_events("submitted", 2)) << read_file(project_.log(), 1 << 20);
  run.kill();
  clock.set("+0");
  auto again = clock.start();
  project_.release();
  EXPECT_EQ(again.finish(), 0) << read_file(project_.log(), 1 << 20);
  expect_undisturbed_result(project_, expected_, "back by a day");
}

// The coordinator is in Berlin, where the clocks change while jobs run: it submits them ten minutes
// before the change, and its clock is then set to the last second before it. alba's clock is a day
// ahead at the date line, brno's a day behind in another zone. The journal's times are UTC and keep
// their order.
TEST_F(Clock, TimeZonesAndTheChangeToWinterTimeChangeNothing) {
  if (!fs::exists("/usr/share/zoneinfo/Europe/Berlin"))
    GTEST_SKIP() << "there is no /usr/share/zoneinfo (package tzdata)";
  const auto with_clock = [](const std::string& zone, const std::string& offset) {
    return "export TZ=" + zone + " FAKETIME_TIMESTAMP_FILE= FAKETIME=" + offset +
           " LD_PRELOAD=" + kFakeTime;
  };
  project_.set_environment("alba", with_clock("Pacific/Kiritimati", "+1d"));
  project_.set_environment("brno", with_clock("America/Los_Angeles", "-1d"));
  project_.set_hold();
  using std::chrono::seconds;
  struct Change {
    seconds first;  // of winter time, and of summer time
    std::string utc;
  };
  for (const Change& change : {Change{seconds(1792890000), "2026-10-25T01:00:00"},
                               Change{seconds(1774746000), "2026-03-29T01:00:00"}}) {
    project_.write_config();
    const WrongClock clock(project_);
    clock.set(change.first - std::chrono::minutes(10) - seconds(::time(nullptr)));
    auto run = clock.start("Europe/Berlin");
    ASSERT_TRUE(project_.await_events("submitted", 2)) << read_file(project_.log(), 1 << 20);
    EXPECT_LT(project_.events().back().time_utc, change.utc) << "submitted after the change";
    const size_t events = project_.events().size();
    const seconds offset = change.first - seconds(1) - seconds(::time(nullptr));
    clock.set(offset);
    EXPECT_TRUE(  // and dozens of polls
        test::await([&] { return seconds(::time(nullptr)) + offset > change.first + seconds(1); }));
    EXPECT_EQ(project_.events().size(), events);
    project_.release();
    EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
    std::string last;
    for (const history::StoredEvent& event : project_.events()) {
      EXPECT_GE(event.time_utc, last);
      last = event.time_utc;
    }
    EXPECT_GT(last, change.utc) << "the change did not pass";
    EXPECT_EQ(last.substr(0, 14), change.utc.substr(0, 14)) << last << " is not UTC";
    expect_undisturbed_result(project_, expected_, "change at " + last);
    project_.forget_runs();
  }
}

}  // namespace
}  // namespace xffl
