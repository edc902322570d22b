// Signals to the launcher, and their effect on the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "helper.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/launch/ranks.h"

namespace xffl::launch {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void await(const std::function<bool()>& done) {
  for (int i = 0; i < 2000 && !done(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(done()) << "timed out";
}

// A launcher in the background, whose ranks create a file "ready.<rank>".
class Launcher {
 public:
  Launcher(int world_size, const std::string& shell_line, int grace_ms = 5000,
           int signal_grace_ms = 0) {
    ProcessSpec spec = launcher(world_size, shell_line, grace_ms);
    if (signal_grace_ms > 0)
      spec.env = {{"XFFL_TEST_SIGNAL_GRACE_MS", std::to_string(signal_grace_ms)}};
    spec.cwd = dir_.path();
    pid_ = start_detached(spec, dir_ / "out");
    for (int rank = 0; rank < world_size; ++rank)
      await([&] { return fs::exists(dir_ / ("ready." + std::to_string(rank))); });
  }
  ~Launcher() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void signal(int signal_number) { ::kill(pid_, signal_number); }
  void signal_group(int signal_number) { ::kill(-pid_, signal_number); }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string output() { return read_file(dir_ / "out", 100000); }
  pid_t pid_in(const std::string& name) { return std::stoi(read_file(dir_ / name, 100)); }
  bool exists(const std::string& name) { return fs::exists(dir_ / name); }

 private:
  test::TempDir dir_;
  pid_t pid_ = -1;
};

constexpr const char* kReady = "touch ready.$RANK; while :; do sleep 0.05; done";

// A closing session kills the launcher's process group.
TEST(LauncherSignals, KillingTheLauncherEndsRanksAndTheirChildren) {
  for (const bool whole_group : {false, true}) {
    Launcher launcher(3,
                      "echo $$ >pid.$RANK; sleep 300 & echo $! >child.$RANK; touch ready.$RANK; "
                      "trap '' TERM; while :; do sleep 0.05; done");
    std::vector<pid_t> pids;
    for (const char* name : {"pid.0", "pid.1", "pid.2", "child.0", "child.1", "child.2"})
      pids.push_back(launcher.pid_in(name));
    for (pid_t pid : pids) ASSERT_TRUE(process_start_ticks(pid));
    whole_group ? launcher.signal_group(SIGKILL) : launcher.signal(SIGKILL);
    EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
    for (pid_t pid : pids) await([&] { return !process_start_ticks(pid); });
  }
}

TEST(LauncherSignals, ForwardsSigtermAndLetsRanksCleanUp) {
  Launcher launcher(2, std::string("trap 'echo tidy; exit 0' TERM; ") + kReady);
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_THAT(launcher.output(), HasSubstr("[0] tidy\n"));
  EXPECT_THAT(launcher.output(), HasSubstr("[1] tidy\n"));
}

// The end of a terminal or of an SSH connection.
TEST(LauncherSignals, ForwardsAHangupAndLetsRanksCleanUp) {
  Launcher launcher(2, std::string("trap 'echo tidy; exit 0' HUP; ") + kReady);
  launcher.signal(SIGHUP);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_THAT(launcher.output(), testing::AllOf(HasSubstr("[0] tidy\n"), HasSubstr("[1] tidy\n")));
}

TEST(LauncherSignals, TermThenKillAfterTheGrace) {
  Launcher launcher(2, std::string("trap '' TERM; ") + kReady, 200);
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
}

// Ranks save their state after Slurm's SIGTERM: they have longer than ranks that end with another.
TEST(LauncherSignals, TheGraceAfterASignalIsItsOwn) {
  Launcher launcher(2, std::string("trap 'sleep 1; echo saved; exit 0' TERM; ") + kReady, 100,
                    60000);
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 0);
  const std::string output = launcher.output();
  EXPECT_THAT(output, testing::AllOf(HasSubstr("[0] saved\n"), HasSubstr("[1] saved\n")));
}

TEST(LauncherSignals, ASecondInterruptDoesNotWaitForTheGrace) {
  Launcher launcher(2, std::string("trap 'touch interrupted.$RANK' INT; ") + kReady, 600000);
  launcher.signal(SIGINT);
  await([&] { return launcher.exists("interrupted.0") && launcher.exists("interrupted.1"); });
  launcher.signal(SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
}

TEST(LauncherSignals, ForwardsSigusr1AndContinues) {
  Launcher launcher(2,
                    "trap 'touch warned.$RANK' USR1; touch ready.$RANK; "
                    "for i in $(seq 1000); do [ -e warned.$RANK ] && exit 0; sleep 0.02; done; "
                    "exit 1");
  launcher.signal(SIGUSR1);
  EXPECT_EQ(launcher.wait(), 0);
}

// A rank knows the warning before the walltime; a process that it has started may not.
TEST(LauncherSignals, SendsSigusr1ToNoChildOfARank) {
  Launcher launcher(1,
                    "sleep 300 & child=$!; trap 'warned=yes' USR1; touch ready.$RANK; "
                    "for i in $(seq 1000); do [ -z \"$warned\" ] || break; sleep 0.02; done; "
                    "kill -TERM $child; wait $child; exit $?");
  launcher.signal(SIGUSR1);
  EXPECT_EQ(launcher.wait(), 128 + SIGTERM) << "the end of the child";
}

// Slurm kills a job's processes 30 s after SIGTERM (KillWait).
TEST(LauncherSignals, RanksHaveMostOfSlurmsTimeToSaveTheirWork) {
  EXPECT_GE(RankSpec().signal_grace, std::chrono::seconds(20));
  EXPECT_LT(RankSpec().signal_grace, std::chrono::seconds(30));
}

TEST(LauncherSignals, AnIgnoredHangupStaysIgnored) {
  ProcessSpec spec = launcher(1, "kill -HUP $PPID; sleep 0.3; echo alive");
  spec.argv.insert(spec.argv.begin(), "nohup");
  const ProcessResult result = run_process(spec);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "[0] alive\n");
}

// Launches one rank. The output is a FIFO that the launcher's own descriptor 3 keeps open and
// nobody reads.
ProcessResult launch_unread(const std::string& rank) {
  const test::TempDir dir;
  ProcessSpec spec = launcher(1, rank, 200);
  spec.argv.insert(spec.argv.begin(),
                   {"sh", "-c", "mkfifo out; exec 3<>out; exec \"$@\" >&3", "sh"});
  spec.cwd = dir.path();
  spec.timeout = std::chrono::seconds(60);
  return run_process(spec);
}

TEST(LauncherSignals, AStoppedLaunchDoesNotWaitForItsReader) {
  const ProcessResult result = launch_unread("yes | head -c 100000; kill -TERM $PPID; sleep 300");
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
}

// The same for a signal that comes when the rank has ended and only its output is left.
TEST(LauncherSignals, ASignalAfterTheRanksEndsTheWaitForAReader) {
  const ProcessResult result = launch_unread(
      "setsid sh -c 'touch apart; while kill -0 '$$'; do sleep 0.05; done; "
      "kill -TERM '$PPID </dev/null >/dev/null 2>&1 &\n"
      "until [ -e apart ]; do sleep 0.02; done; yes | head -c 100000");
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 0);
}

TEST(LauncherSignals, RestoresHandlersAfterTheCall) {
  struct sigaction before {
  }, after{};
  ::sigaction(SIGTERM, nullptr, &before);
  EXPECT_EQ(run_ranks({.argv = {"true"}}, {}), 0);
  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(LauncherSignals, LeavesNoGuardianBehind) {
  EXPECT_EQ(run_ranks({.argv = {"true"}, .world_size = 2}, {}), 0);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

}  // namespace
}  // namespace xffl::launch
