// A job that stays, as its script does it; squeue and the coordinator are stand-ins.
// tests/submit/slurm_stay_test.cc runs it on a real Slurm.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <functional>
#include <thread>

#include "slurm_script.h"
#include "xffl/job/job_times.h"

namespace xffl::facility {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class KeptAllocationScript : public SlurmScript {
 protected:
  KeptAllocationScript() {
    slurm().keep_allocation = std::chrono::seconds(60);
    slurm().warning = std::chrono::seconds(30);
    facility_.environment = {"export TAG=\"$TAG+\"", "set -Cu"};
    time_left(600);
    program("trainer", "echo \"$PWD $MASTER_PORT $TAG $XFFL_FAIL\" >>" +
                           (dir_ / "ran.txt").string() +
                           "\n[ -z \"$XFFL_FAIL\" ] || exit 1\necho done >out/report.json\n");
  }
  ~KeptAllocationScript() override {
    if (job_ > 0) kill_job();
  }

  void time_left(int seconds) {
    program("bin/squeue", "echo $(($(date +%s) + " + std::to_string(seconds) + "))\n");
  }
  void start(const std::string& restarts = "") {
    ProcessSpec job = spec("41", restarts);
    job.cwd = folder();
    job_ = start_detached(job, folder() / "job.out");
  }
  static bool await(const std::function<bool()>& what) {
    for (int i = 0; i < 600 && !what(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    return what();
  }
  bool has(const std::string& name, int round = 1) const {
    return fs::exists(folder(round) / name);
  }
  bool await_file(const std::string& name, int round = 1) const {
    return await([&] { return has(name, round); });
  }
  bool ends() {
    return await([&] {
      if (job_ > 0 && ::waitpid(job_, nullptr, WNOHANG) == job_) job_ = 0;
      return job_ == 0;
    });
  }
  void kill_job() {
    ::kill(-job_, SIGKILL);
    ::waitpid(std::exchange(job_, 0), nullptr, 0);
  }
  /// The coordinator's part.
  bool take(int round) {
    make_dirs(folder(round + 1) / "out");
    write_file_atomic(folder(round + 1) / "job.sh", script(round + 1));
    std::error_code failed;
    fs::rename(folder(round) / "stay.offered", folder(round) / "stay.taken", failed);
    return !failed;
  }
  std::string ran() const {
    return fs::exists(dir_ / "ran.txt") ? read_file(dir_ / "ran.txt", 1 << 20) : "";
  }

  pid_t job_ = 0;
};

TEST_F(KeptAllocationScript, RunsTheNextAttemptAsANewJobWould) {
  start();
  ASSERT_TRUE(await_file("stay.offered")) << text("job.out");
  ASSERT_TRUE(take(1));
  ASSERT_TRUE(await_file("stay.offered", 2)) << text("job.out") << text("job.out", 2);
  // The environment is the first one again, the port another, each output in its own folder.
  EXPECT_EQ(ran(), folder(1).string() + " 15656 + \n" + folder(2).string() + " 15657 + \n");
  EXPECT_THAT(text("claim/owner", 2), HasSubstr("41 " + std::string(32, 'b')));
  EXPECT_THAT(text("job.out", 2), HasSubstr("the trainer ended with 0"));
  EXPECT_THAT(text("job.out"), Not(HasSubstr("r0002")));
  const auto first = job::parse_job_times(text("claim/times"));
  const auto second = job::parse_job_times(text("claim/times", 2));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].offered && first[0].handed_over && !first[0].end) << text("claim/times");
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].job, "41");
  EXPECT_EQ(second[0].handover, 1);
  ASSERT_TRUE(take(2));
  ASSERT_TRUE(await_file("stay.offered", 3)) << text("job.out", 3);
  EXPECT_EQ(text("stay.newest"), folder(3).string() + "\n");
  ::kill(job_, SIGTERM);
  ASSERT_TRUE(ends());
  EXPECT_TRUE(has("stay.closed", 3));
  EXPECT_FALSE(take(3));
}

TEST_F(KeptAllocationScript, EndsAtItsTimeLimitOrWhenReleased) {
  const auto left_after = [&](const std::function<void()>& what) {
    for (int round : {1, 2}) fs::remove_all(folder(round));
    make_dirs(folder() / "out");
    start();
    if (!await_file("stay.offered")) return false;
    what();
    return ends() && has("stay.closed");
  };
  slurm().keep_allocation = std::chrono::seconds(1);
  EXPECT_TRUE(left_after([] {}));
  slurm().keep_allocation = std::chrono::seconds(60);
  EXPECT_TRUE(left_after([&] { ::kill(job_, SIGUSR1); }));
  EXPECT_TRUE(left_after([&] { make_dirs(folder() / "claim/fenced"); }));
  EXPECT_TRUE(left_after([&] { make_dirs(folder(2) / "claim"); }));
  EXPECT_TRUE(left_after([&] { fs::rename(folder() / "stay.offered", folder() / "stay.closed"); }));
}

TEST_F(KeptAllocationScript, KeepsNoAllocationPastItsWalltime) {
  const auto offers = [&] {
    fs::remove_all(folder());
    make_dirs(folder() / "out");
    write_file_atomic(folder() / "job.out", run("41").out);
    return has("stay.offered") || has("stay.planned") ||
           text("job.out").find("keeps its allocation") != std::string::npos;
  };
  slurm().keep_allocation = std::chrono::seconds(1);
  EXPECT_TRUE(offers());
  EXPECT_TRUE(has("stay.closed"));
  time_left(35);  // warning: 30
  EXPECT_FALSE(offers());
  EXPECT_THAT(text("claim/ends"), testing::MatchesRegex("[0-9]+\n"));
  program("bin/squeue", "echo Unknown\n");
  EXPECT_FALSE(offers());
  program("bin/squeue", "exit 1\n");
  EXPECT_FALSE(offers());
  time_left(600);
  facility_.environment = {"export XFFL_FAIL=1"};
  EXPECT_FALSE(offers());
  slurm().keep_allocation = std::chrono::seconds(0);  // the last round
  fs::remove_all(folder());
  make_dirs(folder() / "out");
  EXPECT_EQ(run("41").exit_code, 1);
}

// The clock of the script's commands goes forward by the seconds in the file `later`.
TEST_F(KeptAllocationScript, KeepsNoAllocationThatIsTooShortForAnotherTraining) {
  slurm().keep_allocation = std::chrono::seconds(1);
  const std::string later = (dir_ / "later").string();
  program("bin/date",
          "read -r later 2>/dev/null <" + later + "\necho $(($(/bin/date +%s) + ${later:-0}))\n");
  const auto offers_after = [&](int seconds) {
    fs::remove_all(folder());
    fs::remove(later);
    make_dirs(folder() / "out");
    program("bin/squeue", "echo " + std::to_string(::time(nullptr) + 200) + "\n");
    program("trainer",
            "echo " + std::to_string(seconds) + " >" + later + "\necho done >out/report.json\n");
    return run("41").out.find("keeps its allocation") != std::string::npos;
  };
  EXPECT_TRUE(offers_after(50)) << "50 s later 150 s are left; the warning takes 30";
  EXPECT_FALSE(offers_after(100));
}

// The coordinator waits for the report of a job that runs.
TEST_F(KeptAllocationScript, KeepsNoAllocationWithoutAReportOrAfterAFailure) {
  slurm().keep_allocation = std::chrono::seconds(1);
  for (const char* trainer : {"exit 0\n", "echo done >out/report.json\nexit 1\n"}) {
    fs::remove_all(folder());
    make_dirs(folder() / "out");
    program("trainer", trainer);
    EXPECT_THAT(run("41").out, Not(HasSubstr("keeps its allocation"))) << trainer;
    EXPECT_FALSE(has("stay.planned")) << trainer;
  }
}

TEST_F(KeptAllocationScript, ADeclinedAllocationStaysDeclined) {
  program("trainer", "until [ -e finish ]; do sleep 0.02; done\necho done >out/report.json\n");
  start();
  ASSERT_TRUE(await_file("stay.planned"));
  fs::rename(folder() / "stay.planned", folder() / "stay.closed");
  write_file_atomic(folder() / "finish", "");
  ASSERT_TRUE(ends());
  EXPECT_FALSE(has("stay.offered"));
  EXPECT_EQ(text("job.out").find("keeps its allocation"), std::string::npos);
}

// Slurm starts the first script again, in the first folder.
TEST_F(KeptAllocationScript, ARequeuedJobContinuesItsAllocationsAttempt) {
  program("trainer", "echo \"$PWD $MASTER_PORT\" >>" + (dir_ / "ran.txt").string() +
                         "\n[ ! -e slow ] || sleep 60\necho done >out/report.json\n");
  start();
  ASSERT_TRUE(await_file("stay.offered"));
  make_dirs(folder(2));
  ASSERT_TRUE(take(1));
  ASSERT_TRUE(await_file("stay.offered", 2)) << text("job.out", 2);
  make_dirs(folder(3));
  write_file_atomic(folder(3) / "slow", "");
  ASSERT_TRUE(take(2));
  ASSERT_TRUE(await([&] { return ran().find("r3 ") != std::string::npos; }));
  kill_job();
  fs::remove_all(folder(2));  // an old round; of the first one the small files stay
  fs::remove_all(folder(1) / "out");
  fs::remove(folder(3) / "slow");
  start("1");
  ASSERT_TRUE(await_file("stay.offered", 3)) << text("job.out") << text("job.out", 3);
  EXPECT_THAT(text("job.out", 3), HasSubstr("starts again (restart 1)"));
  EXPECT_EQ(ran(), folder(1).string() + " 15656\n" + folder(2).string() + " 15657\n" +
                       folder(3).string() + " 15658\n" + folder(3).string() + " 15662\n");
  EXPECT_EQ(text("claim/owner").substr(0, 3), "41 ");
}

TEST_F(KeptAllocationScript, ARequeuedKeptAllocationIsClosedUnlessItWasTaken) {
  start();
  ASSERT_TRUE(await_file("stay.offered"));
  kill_job();
  start("1");
  ASSERT_TRUE(ends());
  EXPECT_TRUE(has("stay.closed"));
  fs::rename(folder() / "stay.closed", folder() / "stay.offered");
  ASSERT_TRUE(take(1));  // while the job waited in the queue
  start("2");
  ASSERT_TRUE(await_file("stay.offered", 2)) << text("job.out");
  // A duplicate job of the first attempt does not matter.
  EXPECT_THAT(run("42").out, HasSubstr("already claimed by job 41"));
  // Nor has a fenced attempt a job.
  kill_job();
  fs::remove(folder(2) / "out/report.json");
  make_dirs(folder(2) / "claim/fenced");
  start("3");
  ASSERT_TRUE(ends());
  EXPECT_THAT(text("job.out", 2), HasSubstr("abandoned this attempt"));
}

}  // namespace
}  // namespace xffl::facility
