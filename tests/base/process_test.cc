#include "xffl/base/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "support/await.h"
#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

// A folder on a file system that does not answer for 20 s.
constexpr const char* kHangingFolder = "/hanging-folder-of-process-test";
// As for processes in state D, signals have no effect.
std::atomic<bool> signals_are_lost{false};

}  // namespace
}  // namespace xffl

// These two replace the C library's functions in this program.
extern "C" int chdir(const char* path) noexcept {
  if (std::strcmp(path, xffl::kHangingFolder) != 0)
    return static_cast<int>(::syscall(SYS_chdir, path));
  ::sleep(20);
  errno = EIO;
  return -1;
}

extern "C" int kill(pid_t pid, int signal_number) noexcept {
  if (xffl::signals_are_lost) return 0;
  return static_cast<int>(::syscall(SYS_kill, pid, signal_number));
}

namespace xffl {
namespace {

void expect_end(pid_t process) {
  const auto ended = [&] { return !process_start_ticks(process); };
  EXPECT_TRUE(test::await(ended, std::chrono::seconds(30)));
}

TEST(RunProcess, CapturesBothStreamsAndTheExitCode) {
  const ProcessResult result = run_process(
      {.argv = {"sh", "-c", "cat; echo out; echo err >&2; exit 3"}, .stdin_text = "in "});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "in out\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST(RunProcess, PassesArgumentsUnchanged) {
  const std::string nasty = "a b;$(touch /nonexistent) 'q' \"d\" \n*";
  EXPECT_EQ(run_process({.argv = {"printf", "%s", nasty}}).out, nasty);
}

TEST(RunProcess, SetsTheEnvironmentAndWorkingDirectory) {
  test::TempDir dir;
  const ProcessResult result =
      run_process({.argv = {"sh", "-c", "echo $X; pwd"}, .env = {{"X", "7"}}, .cwd = dir.path()});
  EXPECT_EQ(result.out, "7\n" + std::filesystem::canonical(dir.path()).string() + "\n");
  ::setenv("X", "inherited", 1);
  EXPECT_EQ(run_process({.argv = {"printenv", "X"}, .env = {{"X", "7"}}}).out, "7\n");
  ::unsetenv("X");
}

TEST(RunProcess, ErrorNamesAMissingProgram) {
  try {
    run_process({.argv = {"no-such-program-xffl"}});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_NE(std::string(error.what()).find("no-such-program-xffl"), std::string::npos);
  }
}

TEST(RunProcess, ReturnsTheExitCodeWhenSigchldWasIgnored) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  const ProcessResult result = run_process({.argv = {"sh", "-c", "exit 3"}});
  ::signal(SIGCHLD, before);
  EXPECT_EQ(result.exit_code, 3);
}

TEST(RunProcess, AChildDoesNotInheritBlockedSignals) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  const ProcessResult result = run_process({.argv = {"sh", "-c", "kill -TERM $$; exit 3"}});
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
}

// nohup ignores SIGHUP, and this process ignores SIGPIPE.
TEST(RunProcess, AChildDoesNotInheritIgnoredSignals) {
  for (const int ignored : {SIGHUP, SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2}) {
    const auto before = ::signal(ignored, SIG_IGN);
    const std::string kill = "kill -" + std::to_string(ignored) + " $$; exit 3";
    EXPECT_EQ(run_process({.argv = {"sh", "-c", kill}}).exit_code, 128 + ignored);
    ::signal(ignored, before);
  }
}

TEST(RunProcess, TimeoutEndsAChildThatClosedItsOutputs) {
  const ProcessResult result = run_process(
      {.argv = {"sh", "-c", "exec >&- 2>&-; sleep 60"}, .timeout = std::chrono::milliseconds(200)});
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
}

TEST(RunProcess, TimeoutEndsTheWholeProcessGroup) {
  test::TempDir dir;
  ProcessSpec spec{.argv = {"sh", "-c", "sleep 300 & echo $! >new; mv new pid; wait"},
                   .cwd = dir.path(),
                   .timeout = std::chrono::milliseconds(300)};
  ProcessResult result = run_process(spec);
  // On a loaded machine SIGTERM may arrive too early.
  while (!std::filesystem::exists(dir / "pid")) {
    spec.timeout *= 2;
    result = run_process(spec);
  }
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  expect_end(std::stoi(read_file(dir / "pid", 100)));
}

TEST(RunProcess, StopRequestEndsTheChild) {
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop.request_stop();
  });
  EXPECT_EQ(run_process({.argv = {"sleep", "60"}}, stop.get_token()).exit_code, 128 + SIGTERM);
}

TEST(RunProcess, TimeoutEndsAProgramWhoseStartHangs) {
  const ProcessResult result = run_process(
      {.argv = {"true"}, .cwd = kHangingFolder, .timeout = std::chrono::milliseconds(100)});
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
}

TEST(RunProcess, StopRequestEndsAProgramWhoseStartHangs) {
  std::stop_source stop;
  stop.request_stop();
  const ProcessSpec spec{.argv = {"true"}, .cwd = kHangingFolder};
  EXPECT_EQ(run_process(spec, stop.get_token()).exit_code, 128 + SIGTERM);
}

// The process that the child leaves behind keeps both outputs open.
TEST(RunProcess, ReturnsSoonAfterTheEndOfTheChild) {
  const ProcessResult result =
      run_process({.argv = {"sh", "-c", "sleep 300 & echo $!; echo problem >&2; exit 3"},
                   .timeout = std::chrono::seconds(20)});
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.err, "problem\n");
  EXPECT_EQ(::kill(std::stoi(result.out), SIGKILL), 0);
}

TEST(RunProcess, AProcessInTheBackgroundOutlivesItsChild) {
  const ProcessResult result =
      run_process({.argv = {"sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"},
                   .timeout = std::chrono::seconds(20)});
  EXPECT_EQ(result.exit_code, 0);
  const pid_t process = std::stoi(result.out);
  EXPECT_TRUE(process_start_ticks(process));
  EXPECT_EQ(::kill(process, SIGKILL), 0);
}

TEST(RunProcess, LeavesAChildThatSigkillDoesNotEnd) {
  signals_are_lost = true;
  const ProcessResult result = run_process(
      {.argv = {"sh", "-c", "echo $$; exec sleep 20"}, .timeout = std::chrono::milliseconds(100)});
  signals_are_lost = false;
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  const pid_t child = std::stoi(result.out);
  EXPECT_TRUE(process_start_ticks(child));
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(wait_for_exit(child), 128 + SIGKILL);
}

// The read end of a pipe ends with the last copy of its write end.
TEST(RunProcess, AProgramThatHangsInItsStartHoldsNoFile) {
  Pipe pipe = make_pipe();
  signals_are_lost = true;
  const ProcessResult result = run_process(
      {.argv = {"true"}, .cwd = kHangingFolder, .timeout = std::chrono::milliseconds(100)});
  signals_are_lost = false;
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << "the child still hangs";
  pipe.write = UniqueFd();
  pollfd end{pipe.read.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, 0), 1);
}

// The child writes the file `ready` after it has begun to ignore SIGTERM.
ProcessSpec child_without_sigterm(const test::TempDir& dir) {
  return {.argv = {"sh", "-c", "trap '' TERM; echo $$ >new; mv new ready; exec sleep 30"},
          .cwd = dir.path()};
}

TEST(RunProcess, TimeoutKillsAChildThatIgnoresSigterm) {
  test::TempDir dir;
  ProcessSpec spec = child_without_sigterm(dir);
  spec.timeout = std::chrono::milliseconds(300);
  ProcessResult result = run_process(spec);
  // On a loaded machine SIGTERM may arrive too early.
  while (!std::filesystem::exists(dir / "ready")) {
    spec.timeout *= 2;
    result = run_process(spec);
  }
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_FALSE(process_info(std::stoi(read_file(dir / "ready", 100))));
}

TEST(RunProcess, StopRequestKillsAChildThatIgnoresSigterm) {
  test::TempDir dir;
  std::stop_source stop;
  std::jthread stopper([&] {
    EXPECT_TRUE(test::await([&] { return std::filesystem::exists(dir / "ready"); }));
    stop.request_stop();
  });
  const ProcessResult result = run_process(child_without_sigterm(dir), stop.get_token());
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
}

// The child's own child inherits the ignored SIGTERM.
TEST(RunProcess, StopRequestKillsAWholeProcessGroupThatIgnoresSigterm) {
  test::TempDir dir;
  std::stop_source stop;
  std::jthread stopper([&] {
    EXPECT_TRUE(test::await([&] { return std::filesystem::exists(dir / "pid"); }));
    stop.request_stop();
  });
  const std::string script = "trap '' TERM; sleep 300 & echo $! >new; mv new pid; wait";
  const ProcessResult result =
      run_process({.argv = {"sh", "-c", script}, .cwd = dir.path()}, stop.get_token());
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  expect_end(std::stoi(read_file(dir / "pid", 100)));
}

// The child ends at SIGTERM; its own child ignores the signal and holds the output, or does not.
TEST(RunProcess, StopRequestKillsAnOrphanThatIgnoresSigterm) {
  for (const std::string streams : {"", ">/dev/null 2>&1"}) {
    test::TempDir dir;
    std::stop_source stop;
    std::jthread stopper([&] {
      EXPECT_TRUE(test::await([&] { return std::filesystem::exists(dir / "pid"); }));
      stop.request_stop();
    });
    const std::string script =
        "sh -c 'trap \"\" TERM; echo $$ >new; mv new pid; exec sleep 300' " + streams + " & wait";
    const ProcessResult result =
        run_process({.argv = {"sh", "-c", script}, .cwd = dir.path()}, stop.get_token());
    EXPECT_EQ(result.exit_code, 128 + SIGTERM);
    expect_end(std::stoi(read_file(dir / "pid", 100)));
  }
}

// The input and the answer are longer than a pipe.
TEST(RunProcess, TakesTheAnswerWhileTheChildReadsStdin) {
  const std::string input(1 << 20, 'x');
  const ProcessResult result = run_process({.argv = {"timeout", "30", "cat"}, .stdin_text = input});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(result.out == input);
}

TEST(RunProcess, SurvivesAChildThatDoesNotReadStdin) {
  EXPECT_EQ(run_process({.argv = {"true"}, .stdin_text = std::string(1 << 20, 'x')}).exit_code, 0);
}

TEST(RunProcess, KeepsTheBeginningOfALongOutput) {
  const std::string script = "head -c 300000 /dev/zero | tr '\\0' x; echo end >&2; exit 3";
  const ProcessResult result =
      run_process({.argv = {"sh", "-c", script}, .max_output_bytes = 100'001});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out.size(), 100'001u);
  EXPECT_EQ(result.out.find_first_not_of('x'), std::string::npos);
  EXPECT_EQ(result.err, "end\n");
}

TEST(StartDetached, AppendsBothStreamsToTheOutputFile) {
  test::TempDir dir;
  for (int i = 0; i < 2; ++i) {
    const pid_t pid =
        start_detached({.argv = {"sh", "-c", "echo hi; echo oops >&2"}}, dir.path() / "log");
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(read_file(dir.path() / "log", 100), "hi\noops\nhi\noops\n");
}

TEST(StartDetached, ErrorNamesAMissingProgram) {
  const test::TempDir dir;
  const std::string message = test::message_of(ErrorKind::kNotFound, [&] {
    start_detached({.argv = {"no-such-program-xffl"}}, dir / "log");
  });
  EXPECT_NE(message.find("no-such-program-xffl"), std::string::npos);
}

// A job may print a secret.
TEST(StartDetached, CreatesTheOutputFileWithMode0600) {
  const test::TempDir dir;
  const mode_t before = ::umask(0);
  const pid_t pid = start_detached({.argv = {"true"}}, dir / "log");
  ::umask(before);
  EXPECT_EQ(wait_for_exit(pid), 0);
  struct stat info {};
  ASSERT_EQ(::stat((dir / "log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST(ProcessStartTicks, IdentifiesAProcess) {
  const auto mine = process_start_ticks(::getpid());
  ASSERT_TRUE(mine);
  EXPECT_EQ(mine, process_start_ticks(::getpid()));
  const std::string stat = "/proc/" + std::to_string(::getpid()) + "/stat";
  EXPECT_EQ(std::to_string(*mine) + "\n", run_process({.argv = {"cut", "-d ", "-f22", stat}}).out);
  EXPECT_FALSE(process_start_ticks(0x7ffffff0));
}

TEST(ProcessStartTicks, AreFoundBehindAnyNameOfTheProgram) {
  EXPECT_EQ(test::in_child([] {
              const auto before = process_info(::getpid());
              ::prctl(PR_SET_NAME, "a) R 1 2 3 (b");
              const auto after = process_info(::getpid());
              return before && after && before->group == after->group &&
                             before->start_ticks == after->start_ticks
                         ? 0
                         : 1;
            }),
            0);
}

// Some systems hide the processes of other users.
TEST(ProcessInfo, OfAHiddenProcessIsAbsent) {
  for (const int error : {EACCES, EPERM, ESRCH}) {
    const int code = test::in_child([&] {
      if (!test::fail_calls(SYS_openat, static_cast<unsigned>(error))) return 77;
      return process_info(::getpid()) ? 1 : 0;
    });
    if (code == 77) GTEST_SKIP() << "this system allows no seccomp filter";
    EXPECT_EQ(code, 0) << error;
  }
}

// A job that cannot be seen for a moment has not ended.
TEST(ProcessInfo, IsNotAbsentWithoutAFreeFileDescriptor) {
  const int code = test::in_child([] {
    if (!test::fail_calls(SYS_openat, EMFILE)) return 77;
    const auto one = test::thrown_by([] { process_info(::getpid()); });
    const auto all = test::thrown_by([] { list_processes(); });
    return one.kind == ErrorKind::kIo && all.kind == ErrorKind::kIo ? 0 : 1;
  });
  if (code == 77) GTEST_SKIP() << "this system allows no seccomp filter";
  EXPECT_EQ(code, 0);
}

// Scripts and the coordinator's systemd unit act on these numbers.
TEST(ExitCode, OfEachKindIsTheDocumentedOne) {
  const std::map<ErrorKind, int> documented = {
      {ErrorKind::kInternal, 1},   {ErrorKind::kUsage, 2},        {ErrorKind::kConfig, 3},
      {ErrorKind::kNotFound, 4},   {ErrorKind::kCorrupt, 5},      {ErrorKind::kRejected, 5},
      {ErrorKind::kIo, 6},         {ErrorKind::kRemote, 7},       {ErrorKind::kBusy, 8},
      {ErrorKind::kFailed, 9},     {ErrorKind::kUnsupported, 10}, {ErrorKind::kAuth, 11},
      {ErrorKind::kCancelled, 75},
  };
  for (const auto& [kind, code] : documented) EXPECT_EQ(exit_code(kind), code) << to_string(kind);
}

}  // namespace
}  // namespace xffl
