// Faults of the coordinator's machine: system calls fail, the wall clock jumps. The run loses
// nothing and trains nothing twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <thread>

#include "e2e/project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::expect_undisturbed_result;
using test::Project;
using testing::HasSubstr;

// --- failing system calls ------------------------------------------------------------------------

// Injects failures into the system calls of the coordinator's main thread, which decides and
// records, with strace.
class Strace {
 public:
  static bool works() {
    try {
      return run_process({.argv = {"strace", "-qq", "-o", "/dev/null", "true"}}).exit_code == 0;
    } catch (const Error&) {
      return false;
    }
  }
  explicit Strace(const Project& project) : project_(project) {}

  ProcessResult run(const std::string& calls, const std::string& injection = "") const {
    std::vector<std::string> argv = {"strace", "-qq", "-o", log(), "-e", "trace=" + calls};
    if (!injection.empty()) argv.insert(argv.end(), {"-e", "inject=" + calls + injection});
    argv.insert(argv.end(), {XFFL_BINARY_DIR "/bin/xffl", "run", "-p", project_.path().string()});
    return run_process({.argv = argv, .timeout = std::chrono::seconds(120)});
  }
  int count(const std::string& call) const {
    EXPECT_EQ(run(call).exit_code, 0);
    std::ifstream lines(log());
    int number = 0;
    for (std::string line; std::getline(lines, line);) number += line.starts_with(call + "(");
    return number;
  }

 private:
  std::string log() const { return (dir_ / "strace.txt").string(); }

  const Project& project_;
  test::TempDir dir_;
};

// The coordinator continues or ends with an error message; the same command then completes the run.
void expect_survival(const Project& project, const Strace& strace, const std::string& expected,
                     const std::string& call, const std::string& injection) {
  const std::string context = call + injection;
  const ProcessResult broken = strace.run(call, injection);
  EXPECT_FALSE(broken.timed_out) << context;
  if (broken.exit_code != 0) {
    EXPECT_LT(broken.exit_code, 128) << context << ": killed; " << broken.err;
    EXPECT_NE(broken.exit_code, exit_code(ErrorKind::kInternal)) << context << broken.err;
    EXPECT_THAT(broken.err, HasSubstr("xffl: error (")) << context;
  }
  const ProcessResult resumed = project.run();
  EXPECT_EQ(resumed.exit_code, 0) << context << resumed.err;
  expect_undisturbed_result(project, expected, context);
  project.forget_runs();
}

// Fails a sample of the calls; with XFFL_CAMPAIGN=1 every call.
TEST(SystemCalls, EachSingleFailureLosesNothing) {
  if (!Strace::works())
    GTEST_SKIP() << "strace is missing or may not trace (scripts/bootstrap.sh test)";
  const bool all = std::getenv("XFFL_CAMPAIGN") != nullptr;
  Project project;
  const std::string expected = test::undisturbed_sha256(project);
  const Strace strace(project);
  struct Kind {
    std::string call, error;
    int sample;
  };
  int failures = 0;
  for (const Kind& kind : {Kind{"fsync", "EIO", 4},
                           {"fdatasync", "EIO", 4},
                           {"pwrite64", "ENOSPC", 5},
                           {"write", "ENOSPC", 3},
                           {"rename", "ENOSPC", 4},
                           {"mkdir", "ENOSPC", 2},
                           {"ftruncate", "EIO", 2},
                           {"openat", "EMFILE", 4}}) {
    const int count = strace.count(kind.call);
    project.forget_runs();
    ASSERT_GT(count, 0) << kind.call;
    const int step = all ? 1 : std::max(1, count / kind.sample);
    for (int n = all ? 1 : std::max(1, step / 2); n <= count; n += step, ++failures)
      expect_survival(project, strace, expected, kind.call,
                      ":error=" + kind.error + ":when=" + std::to_string(n));
    if (testing::Test::HasFailure() && !all) return;
  }
  std::cout << failures << " system calls failed\n";
}

// --- a wrong wall clock
// ----------------------------------------------------------------------------

constexpr const char* kFakeTime = "/usr/lib/" XFFL_MULTIARCH "/faketime/libfaketimeMT.so.1";

// The wall clock of `xffl run` is this machine's plus the offset of set(), from that call on. The
// monotonic clock stays correct, as after a step of NTP or by an administrator.
class WrongClock {
 public:
  explicit WrongClock(const Project& project) : project_(project) { set("+0"); }
  static bool there() { return fs::exists(kFakeTime); }
  void set(const std::string& offset) const { write_file_atomic(dir_ / "offset", offset + "\n"); }
  test::StartedRun start() const {
    return test::StartedRun(start_detached(
        {.argv = {XFFL_BINARY_DIR "/bin/xffl", "run", "-p", project_.path().string()},
         .env = {{"LD_PRELOAD", kFakeTime},
                 {"FAKETIME_TIMESTAMP_FILE", (dir_ / "offset").string()},
                 {"FAKETIME_NO_CACHE", "1"},
                 {"FAKETIME_DONT_FAKE_MONOTONIC", "1"},
                 {"DONT_FAKE_MONOTONIC", "1"},
                 {"NO_FAKE_STAT", "1"}}},
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

}  // namespace
}  // namespace xffl
