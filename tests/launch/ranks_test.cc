#include "xffl/launch/ranks.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include "helper.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/resources.h"

namespace xffl::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(RunRanks, SetsRankAndWorldSizeOfEachRank) {
  const ProcessResult result = launch(
      3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR; echo e$RANK >&2");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(
      sorted_lines(result.out),
      ElementsAre("[0] 0 0 3 3 127.0.0.1", "[1] 1 1 3 3 127.0.0.1", "[2] 2 2 3 3 127.0.0.1"));
  EXPECT_THAT(sorted_lines(result.err), ElementsAre("[0] e0", "[1] e1", "[2] e2"));
}

TEST(RunRanks, AllRanksGetTheSameFreePort) {
  const ProcessResult result = launch(4, "echo $MASTER_PORT");
  std::set<int> ports;
  for (const std::string& line : sorted_lines(result.out)) ports.insert(std::stoi(line.substr(4)));
  ASSERT_EQ(ports.size(), 1u);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(*ports.begin()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  void* const raw = &address;
  EXPECT_EQ(::bind(fd.get(), static_cast<sockaddr*>(raw), sizeof address), 0);
  EXPECT_EQ(::listen(fd.get(), 4), 0);
}

// A rank of a Python program imports its libraries for seconds before it listens.
TEST(RunRanks, OnlyARankThatSharesThePortGetsIt) {
  const std::string program =
      "python3 -c 'import os, socket\n"
      "port = int(os.environ[\"MASTER_PORT\"])\n"
      "other = socket.socket()\n"
      "try:\n"
      "  other.bind((\"127.0.0.1\", port))\n"
      "  print(\"taken by another program\")\n"
      "except OSError:\n"
      "  print(\"reserved\")\n"
      "store = socket.socket()\n"
      "store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
      "store.bind((\"0.0.0.0\", port))\n"
      "store.listen()\n"
      "print(\"listening\")'";
  const ProcessResult result = launch(1, program);
  EXPECT_EQ(result.out, "[0] reserved\n[0] listening\n") << result.err;
}

TEST(RunRanks, IgnoresTheRendezvousOfAnOuterLaunch) {
  ProcessSpec spec =
      launcher(1, "echo $MASTER_ADDR $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_PORT");
  spec.env = {{"MASTER_ADDR", "outer.example"},
              {"MASTER_PORT", "1"},
              {"RANK", "5"},
              {"LOCAL_RANK", "4"},
              {"WORLD_SIZE", "9"},
              {"LOCAL_WORLD_SIZE", "8"}};
  const ProcessResult result = run_process(spec);
  EXPECT_THAT(result.out, testing::StartsWith("[0] 127.0.0.1 0 0 1 1 "));
  EXPECT_THAT(result.out, testing::Not(testing::EndsWith(" 1\n")));
}

TEST(RunRanks, DividesTheCpusUnlessOmpNumThreadsIsSet) {
  const std::string line = "[ $RANK = 9 ] && echo $OMP_NUM_THREADS; true";
  ProcessSpec spec = launcher(10, line);
  spec.argv.insert(spec.argv.begin(), {"env", "-u", "OMP_NUM_THREADS"});
  const int share = std::max(1, available_cpus() / 10);
  EXPECT_EQ(run_process(spec).out, "[9] " + std::to_string(share) + "\n");
  spec = launcher(10, line);
  spec.env = {{"OMP_NUM_THREADS", "7"}};
  EXPECT_EQ(run_process(spec).out, "[9] 7\n");
}

TEST(RunRanks, SetsPassiveWaitPolicyUnlessOneIsSet) {
  ProcessSpec spec = launcher(1, "echo $OMP_WAIT_POLICY,$GOMP_SPINCOUNT");
  spec.argv.insert(spec.argv.begin(), {"env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT"});
  EXPECT_EQ(run_process(spec).out, "[0] PASSIVE,\n");
  spec.argv.insert(spec.argv.begin() + 5, "OMP_WAIT_POLICY=ACTIVE");
  EXPECT_EQ(run_process(spec).out, "[0] ACTIVE,\n");
  spec.argv[5] = "GOMP_SPINCOUNT=100";
  EXPECT_EQ(run_process(spec).out, "[0] ,100\n");
}

TEST(RunRanks, PassesArgumentsUnchangedAndNoInput) {
  const std::string nasty = "a b;$(id) 'q' \n*";
  const ProcessResult result = run_process(
      {.argv = {LAUNCH_HELPER, "1", "100", "0", "sh", "-c", "cat; printf %s \"$1\"", "sh", nasty},
       .stdin_text = "not for ranks"});
  EXPECT_EQ(result.out, nasty);
}

TEST(RunRanks, ReturnsTheExitCodeOfTheFirstFailureAndEndsTheOthers) {
  const ProcessResult result =
      launch(4,
             "trap 'echo ended; exit 9' TERM; [ $RANK = 2 ] && sleep 0.3 && exit 42\n"
             "while :; do sleep 0.05; done");
  EXPECT_EQ(result.exit_code, 42);
  EXPECT_THAT(sorted_lines(result.out), ElementsAre("[0] ended", "[1] ended", "[3] ended"));
}

TEST(RunRanks, ReportsASignal) { EXPECT_EQ(launch(2, "kill -KILL $$").exit_code, 128 + SIGKILL); }

// The launcher itself ignores SIGPIPE.
TEST(RunRanks, RanksDoNotInheritTheIgnoredSigpipe) {
  EXPECT_EQ(launch(1, "kill -PIPE $$").exit_code, 128 + SIGPIPE);
}

// A debugger or a user may have stopped a rank: the rank still handles SIGTERM.
TEST(RunRanks, EndsAStoppedRankWithSigterm) {
  test::TempDir dir;
  ProcessSpec spec = launcher(2,
                              "if [ $RANK = 0 ]; then\n"
                              "  trap 'echo ended; exit 9' TERM; echo $$ >part; mv part pid\n"
                              "  kill -STOP $$; while :; do sleep 0.05; done\n"
                              "fi\n"
                              "until [ -e pid ] && grep -q '^State:.T' /proc/$(cat pid)/status\n"
                              "do sleep 0.05; done; exit 42",
                              120'000);
  spec.cwd = dir.path();
  const ProcessResult result = run_process(spec);
  EXPECT_EQ(result.exit_code, 42);
  EXPECT_EQ(result.out, "[0] ended\n");
}

TEST(RunRanks, KillsRanksThatIgnoreSigterm) {
  const ProcessResult result = launch(
      2, "[ $RANK = 0 ] && sleep 0.2 && exit 5; trap '' TERM; while :; do sleep 0.05; done", 200);
  EXPECT_EQ(result.exit_code, 5);
}

// The process that a rank leaves behind ignores SIGTERM.
TEST(RunRanks, KillsTheRestOfEachProcessGroup) {
  test::TempDir dir;
  ProcessSpec spec = launcher(2, "trap '' TERM; sleep 300 & echo $! >pid.$RANK", 200);
  spec.cwd = dir.path();
  EXPECT_EQ(run_process(spec).exit_code, 0);
  for (const char* name : {"pid.0", "pid.1"}) {
    const pid_t pid = std::stoi(read_file(dir / name, 100));
    for (int i = 0; i < 400 && process_start_ticks(pid); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(process_start_ticks(pid)) << name;
  }
}

// A process that a rank leaves behind may save its work.
TEST(RunRanks, EndsTheRestOfAProcessGroupWithSigterm) {
  test::TempDir dir;
  ProcessSpec spec =
      launcher(1,
               "(trap 'echo saved; exit' TERM; touch ready; while :; do sleep 0.05; done) &\n"
               "until [ -e ready ]; do sleep 0.02; done",
               120'000);
  spec.cwd = dir.path();
  const ProcessResult result = run_process(spec);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "[0] saved\n");
}

// Without a free file descriptor the launcher does not see the process that the rank leaves behind.
TEST(RunRanks, EndsTheRestOfAProcessGroupUnseenWithSigterm) {
  if (run_process({.argv = {"sh", "-c", "command -v prlimit"}}).exit_code != 0)
    GTEST_SKIP() << "this machine lacks prlimit";
  test::TempDir dir;
  ProcessSpec spec =
      launcher(1,
               "(trap 'prlimit --pid '$PPID' --nofile=1024:; echo saved; exit' TERM; touch ready\n"
               " while :; do sleep 0.05; done) &\n"
               "until [ -e ready ]; do sleep 0.02; done; prlimit --pid $PPID --nofile=4:",
               120'000);
  spec.cwd = dir.path();
  const ProcessResult result = run_process(spec);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[0] saved\n") << result.err;
}

TEST(RunRanks, ReturnsWhileADaemonKeepsTheOutputOpen) {
  const ProcessResult result =
      run_process(launcher(1, "setsid sh -c 'echo $$; exec sleep 300' & sleep 0.2; echo end", 200));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("[0] end\n"));
  const pid_t daemon = std::stoi(result.out.substr(4));
  EXPECT_EQ(::kill(daemon, SIGKILL), 0);
}

// The launcher is stopped until the rank has ended and the daemon has filled half of a large pipe.
TEST(RunRanks, CopiesABoundedRestOfADaemonsOutput) {
  ProcessSpec spec =
      launcher(1,
               "exec python3 -c '\n"
               "import fcntl, os, signal, time\n"
               "def wait(pid, state):\n"
               "  while open(f\"/proc/{pid}/stat\").read().split()[2] != state: time.sleep(0.01)\n"
               "launcher, rank = os.getppid(), os.getpid()\n"
               "if os.fork() != 0:\n"
               "  wait(launcher, \"T\")\n"
               "  os.write(2, b\"end\\n\")\n"
               "  os._exit(0)\n"
               "os.setsid()\n"
               "fcntl.fcntl(1, 1031, 1 << 20)  # F_SETPIPE_SZ\n"
               "os.kill(launcher, signal.SIGSTOP)\n"
               "wait(rank, \"Z\")\n"
               "os.write(1, (b\"x\" * 1023 + b\"\\n\") * 512)\n"
               "os.kill(launcher, signal.SIGCONT)'");
  spec.timeout = std::chrono::minutes(1);  // a failed daemon leaves the launcher stopped
  const ProcessResult result = run_process(spec);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "[0] end\n");
  EXPECT_LT(std::count(result.out.begin(), result.out.end(), '\n'), 256) << "of 512 lines";
}

TEST(RunRanks, KeepsLinesWhole) {
  const ProcessResult result =
      launch(4,
             "i=0; while [ $i -lt 500 ]; do printf 'ab'; printf 'cd%s\\n' $RANK; i=$((i+1)); done; "
             "printf last");
  const std::vector<std::string> lines = sorted_lines(result.out);
  ASSERT_EQ(lines.size(), 4u * 501);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string prefix = "[" + std::to_string(rank) + "] ";
    EXPECT_EQ(std::count(lines.begin(), lines.end(), prefix + "abcd" + std::to_string(rank)), 500);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), prefix + "last"), 1);
  }
}

TEST(RunRanks, CopiesLargeOutputsInBoundedMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more address space than this test allows";
#endif
  // 2 x 200 MB of lines and one of 100 MB without an end, in an address space of 256 MB.
  const ProcessResult result = run_process(
      {.argv = {"sh", "-c",
                "ulimit -v 262144; '" LAUNCH_HELPER
                "' 2 5000 1 sh -c 'yes 0123456789012345678901234567890123456789012345678 | "
                "head -c 200000000; head -c 100000000 /dev/zero' | tr -d '\\0' | wc -c"}});
  EXPECT_EQ(result.exit_code, 0);
  // 2 x 4M lines of 50 + 4 bytes; of each zero piece, "[0] " and a newline are left
  EXPECT_EQ(std::stoll(result.out), 2 * (4'000'000 * 54 + 1526 * 5));
}

TEST(RunRanks, ContinuesAfterItsReaderHasClosedTheOutput) {
  const ProcessResult result =
      run_process({.argv = {"bash", "-c",
                            "'" LAUNCH_HELPER "' 2 5000 1 sh -c 'yes | head -c 3000000; exit 6' | "
                            "head -c 10 >/dev/null; exit ${PIPESTATUS[0]}"}});
  EXPECT_EQ(result.exit_code, 6);
}

// Another process may fill a shared descriptor between poll() and write(). The launcher writes to
// its guardian, too, so each of its first calls fails in turn.
TEST(RunRanks, KeepsItsOutputWhileADescriptorIsFull) {
  const test::TempDir dir;
  const std::string faults = XFFL_BINARY_DIR "/bin/xffl-call-faults", calls = dir / "calls";
  if (!std::filesystem::exists(faults) ||
      run_process({.argv = {faults, calls, "write", "0", "kill", "true"}}).exit_code != 0)
    GTEST_SKIP() << "this machine does not run xffl-call-faults";
  for (const char* number : {"1", "2", "3"}) {
    ProcessSpec spec = launcher(1, "echo whole");
    spec.argv.insert(spec.argv.begin(), {faults, calls, "write", number, "EAGAIN"});
    EXPECT_EQ(run_process(spec).out, "[0] whole\n") << number;
  }
}

// The rank prints its second line after the launcher has failed to write the first one: the
// launcher writes to its standard output before its standard error.
TEST(RunRanks, ContinuesItsOutputAfterAFullDisk) {
  const test::TempDir dir;
  const std::string faults = XFFL_BINARY_DIR "/bin/xffl-call-faults", calls = dir / "calls";
  if (!std::filesystem::exists(faults) ||
      run_process({.argv = {faults, calls, "write", "0", "kill", "true"}}).exit_code != 0)
    GTEST_SKIP() << "this machine does not run xffl-call-faults";
  ProcessSpec spec = launcher(
      1, "echo one; until [ -s errors ]; do sleep 0.02; echo mark >&2; done; echo two; echo three");
  // The first write is one to the guardian.
  spec.argv.insert(spec.argv.begin(), {"sh", "-c", "exec \"$@\" 2>errors", "sh", faults, calls,
                                       "write", "2", "ENOSPC"});
  spec.cwd = dir.path();
  EXPECT_EQ(run_process(spec).out,
            "\nxffl: output is missing above: No space left on device\n[0] two\n[0] three\n");
}

TEST(RunRanks, WithoutPrefixRanksInheritTheOutput) {
  EXPECT_EQ(launch(1, "printf out; printf err >&2", 100, false).out, "out");
  EXPECT_EQ(launch(1, "printf out; printf err >&2", 100, false).err, "err");
}

TEST(RunRanks, StopsOnRequest) {
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop.request_stop();
  });
  EXPECT_EQ(run_ranks({.argv = {"sleep", "60"}, .world_size = 2}, stop.get_token()), 128 + SIGTERM);
}

TEST(RunRanks, NamesAMissingProgramAndABadSize) {
  try {
    run_ranks({.argv = {"no-such-program-xffl"}, .world_size = 2}, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("no-such-program-xffl"));
  }
  try {
    run_ranks({.argv = {"/no/such/program"}, .world_size = 2}, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  }
  EXPECT_THROW(run_ranks({.argv = {"true"}, .world_size = 0}, {}), Error);
  EXPECT_THROW(run_ranks({.argv = {}, .world_size = 1}, {}), Error);
}

TEST(RunRanks, FindsTheFirstExecutableFileInPath) {
  const test::TempDir dir;
  for (const char* folder : {"first", "second"}) make_dirs(dir / folder);
  write_file_atomic(dir / "first/tool", "", 0600);
  write_file_atomic(dir / "second/tool", "#!/bin/sh\necho found\n", 0700);
  const std::string path = (dir / "first").string() + ":" + (dir / "second").string();
  testing::internal::CaptureStdout();
  const int code = run_ranks({.argv = {"tool"}, .env = {{"PATH", path}}}, {});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "[0] found\n");
  EXPECT_EQ(code, 0);
}

TEST(RunRanks, ReturnsExitCodesWhenSigchldWasIgnored) {
  EXPECT_EQ(run_process({.argv = {"bash", "-c", "trap '' CHLD; exec \"$@\"", "bash", LAUNCH_HELPER,
                                  "2", "100", "1", "sh", "-c", "exit 3"}})
                .exit_code,
            3);
}

}  // namespace
}  // namespace xffl::launch
