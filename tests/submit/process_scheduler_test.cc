// Properties of the process scheduler alone; tests/contract holds the common ones.
#include "process_scheduler.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <future>
#include <thread>

#include "support/await.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/submit/scheduler.h"
#include "xffl/submit/template.h"

namespace xffl::submit {
namespace {

namespace fs = std::filesystem;

void await(const std::function<bool()>& done) {
  for (int i = 0; i < 2000 && !done(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(done()) << "timed out";
}

class ProcessScheduler : public testing::Test {
 protected:
  test::TempDir dir_;
  fs::path folder_ = fs::canonical(dir_.path());
  std::unique_ptr<Scheduler> scheduler_ = make_process_scheduler();
  std::vector<JobId> started_;

  ~ProcessScheduler() override {
    for (const JobId& id : started_) scheduler_->cancel({id, "job-a"}, {});
  }

  JobRequest request(const std::string& script) const {
    return {.name = "job-a", .script = script, .folder = RemotePath(folder_.string())};
  }
  JobId start(const std::string& script) {
    started_.push_back(scheduler_->submit(request(script), {}));
    return started_.back();
  }
  JobStatus status(const JobId& id) {
    const SubmittedJob job{id, ""};
    return scheduler_->query(std::span(&job, 1), {}).at(id);
  }
  void await_end(const JobId& id) {
    await([&] { return status(id).state == JobState::kEnded; });
  }
  bool exists(const std::string& name) const { return fs::exists(folder_ / name); }
  std::string content(const std::string& name) const { return read_file(folder_ / name, 1000); }
  std::vector<JobId> found() { return scheduler_->find(request(""), {}); }
};

TEST_F(ProcessScheduler, RunsTheScriptInItsFolderAndWritesItsOutputThere) {
  const JobId id = start("pwd; echo problem >&2; read -r line || echo no input; exit 3");
  await_end(id);
  EXPECT_EQ(content("job.out"), folder_.string() + "\nproblem\nno input\n");
  EXPECT_EQ(status(id).native, "exit 3");
}

TEST_F(ProcessScheduler, AnIdIsPidAndStartTime) {
  const JobId id = start("sleep 60");
  const pid_t pid = std::stoi(id.str());
  EXPECT_EQ(id.str(), std::to_string(pid) + "." + std::to_string(process_start_ticks(pid).value()));
  EXPECT_EQ(::getpgid(pid), pid);
}

TEST_F(ProcessScheduler, AScriptThatEndsImmediatelyHasAnId) {
  for (int i = 0; i < 20; ++i) await_end(start("exit 0"));
}

TEST_F(ProcessScheduler, RejectsAFolderThatDoesNotExist) {
  JobRequest bad = request("true");
  bad.folder = RemotePath((folder_ / "no").string());
  try {
    scheduler_->submit(bad, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), testing::HasSubstr("/no"));
  }
}

// The file system may answer the next submission.
TEST_F(ProcessScheduler, AFolderThatCannotBeLookedAtRejectsNoJob) {
  fs::create_symlink("loop", folder_ / "loop");
  JobRequest wanted = request("true");
  wanted.folder = RemotePath((folder_ / "loop").string());
  EXPECT_EQ(test::kind_of([&] { scheduler_->submit(wanted, {}); }), ErrorKind::kIo);
}

TEST_F(ProcessScheduler, FindsTheOwnerOfACompleteClaimOnly) {
  EXPECT_TRUE(found().empty());
  fs::create_directory(folder_ / "claim");
  EXPECT_TRUE(found().empty());
  for (const char* bad : {"", "123", "123.456", "abc nonce\n", "1.456 nonce\n", "-123.456 n\n",
                          "123.456.789 n\n", " 123.456 n\n", "99999999999999.1 n\n"}) {
    write_file_atomic(folder_ / "claim/owner", bad);
    EXPECT_TRUE(found().empty()) << bad;
  }
  write_file_atomic(folder_ / "claim/owner", "123.456 nonce\n");
  EXPECT_EQ(found(), std::vector{JobId("123.456")});
}

// After a lost answer, an absent owner means that no job has started.
TEST_F(ProcessScheduler, AnOwnerThatCannotBeReadIsNotAbsent) {
  fs::create_directory(folder_ / "claim");
  fs::create_symlink("elsewhere", folder_ / "claim/owner");
  EXPECT_EQ(test::kind_of([&] { found(); }), ErrorKind::kRemote);
}

TEST_F(ProcessScheduler, APipeInPlaceOfTheOwnerIsNotWaitedFor) {
  fs::create_directory(folder_ / "claim");
  const fs::path pipe = folder_ / "claim/owner";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  auto kind = std::async(std::launch::async, [&] { return test::kind_of([&] { found(); }); });
  EXPECT_EQ(kind.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const UniqueFd writer(::open(pipe.c_str(), O_RDWR | O_CLOEXEC));  // ends the wait of a reader
  EXPECT_EQ(kind.get(), ErrorKind::kRemote);
}

TEST_F(ProcessScheduler, WithoutAFreeFileDescriptorAJobHasNotEnded) {
  const JobId id = start("sleep 60");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto thrown = test::thrown_by([&] { status(id); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(thrown.kind, ErrorKind::kRemote) << thrown.message;
  EXPECT_EQ(status(id).state, JobState::kRunning);
}

// The job began later after its boot than the present moment is after this one.
TEST_F(ProcessScheduler, ARestartOfTheMachineIsAnInfrastructureFailure) {
  const JobStatus lost = status(JobId("2147483000.999999999999"));
  EXPECT_EQ(lost.state, JobState::kEnded);
  EXPECT_EQ(lost.cause, EndCause::kInfrastructure);
  // These jobs began after this boot; the scheduler has not seen their ends.
  for (const uint64_t ticks : {uint64_t{1}, process_start_ticks(::getpid()).value()}) {
    const JobStatus ended = status(JobId("2147483000." + std::to_string(ticks)));
    EXPECT_EQ(ended.state, JobState::kEnded) << ticks;
    EXPECT_EQ(ended.cause, EndCause::kOrdinary) << ticks;
  }
}

TEST_F(ProcessScheduler, AReusedPidIsNotTheJob) {
  const pid_t other = start_detached({.argv = {"sleep", "60"}}, folder_ / "other.out");
  const uint64_t ticks = process_start_ticks(other).value();
  for (uint64_t wrong : {ticks - 1, ticks + 1}) {
    const JobId id(std::to_string(other) + "." + std::to_string(wrong));
    EXPECT_EQ(status(id).state, JobState::kEnded);
    scheduler_->cancel({id, "job-a"}, {});
  }
  // The first fatal signal decides, even when the process has not ended yet.
  ::kill(other, SIGKILL);
  int ending = 0;
  ASSERT_EQ(::waitpid(other, &ending, 0), other);
  EXPECT_EQ(WTERMSIG(ending), SIGKILL) << "the other process was ended by the scheduler";
}

// The children of that session are newer than the job, and no part of it.
TEST_F(ProcessScheduler, TheChildrenOfAReusedPidAreNotTheJob) {
  const std::string line = "sleep 60 & echo $! >child; wait";
  const pid_t other =
      start_detached({.argv = {"sh", "-c", line}, .cwd = folder_}, folder_ / "other.out");
  await([&] { return exists("child") && !content("child").empty(); });
  const pid_t child = std::stoi(content("child"));
  const JobId id(std::to_string(other) + "." +
                 std::to_string(process_start_ticks(other).value() - 1));
  EXPECT_EQ(status(id).state, JobState::kEnded);
  scheduler_->cancel({id, "job-a"}, {});
  EXPECT_TRUE(process_start_ticks(child)) << "a stranger's process was killed";
  ::kill(-other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

TEST_F(ProcessScheduler, SignalsNothingForAnInvalidId) {
  // A signal for any of these ids would kill this test program.
  for (const char* id : {"0.0", "1.1", "+1.5", "0.5", "abc", "4000000000.1", "12", "12."})
    scheduler_->cancel({JobId(id), "job-a"}, {});
  EXPECT_EQ(status(JobId("1.1")).state, JobState::kUnknown);
}

TEST_F(ProcessScheduler, CancelKillsAJobThatIgnoresSigterm) {
  const JobId id = start("trap '' TERM; touch ready; while :; do sleep 0.1; done");
  await([&] { return exists("ready"); });
  scheduler_->cancel({id, "job-a"}, {});
  EXPECT_EQ(status(id).state, JobState::kEnded);
  EXPECT_EQ(status(id).native, "signal 9");
}

TEST_F(ProcessScheduler, CancelLetsAJobCleanUpForSeconds) {
  const JobId id = start(
      "trap 'sleep 2; touch cleaned; exit 0' TERM; touch ready; while :; do sleep 0.05; done");
  await([&] { return exists("ready"); });
  scheduler_->cancel({id, "job-a"}, {});
  EXPECT_TRUE(exists("cleaned"));
}

TEST_F(ProcessScheduler, CancelLetsAChildOfTheScriptCleanUp) {
  const JobId id = start(
      "(trap 'touch cleaned; exit 0' TERM; touch ready; while :; do sleep 0.05; done) &\nwait\n");
  await([&] { return exists("ready"); });
  scheduler_->cancel({id, "job-a"}, {});
  EXPECT_TRUE(exists("cleaned"));
}

TEST_F(ProcessScheduler, CancelLetsAProcessThatOutlivesTheScriptCleanUp) {
  const JobId id =
      start("(trap 'touch cleaned; exit 0' TERM; touch ready; while :; do sleep 0.05; done) &");
  await([&] { return exists("ready"); });
  await([&] { return !process_start_ticks(std::stoi(id.str())); });
  scheduler_->cancel({id, "job-a"}, {});
  EXPECT_EQ(status(id).state, JobState::kEnded);
  EXPECT_TRUE(exists("cleaned"));
}

TEST_F(ProcessScheduler, CancelKillsAProcessThatOutlivesTheScriptAndIgnoresSigterm) {
  const JobId id = start("(trap '' TERM; touch ready; while [ ! -e go ]; do sleep 0.05; done) &");
  await([&] { return exists("ready"); });
  await([&] { return !process_start_ticks(std::stoi(id.str())); });
  const CancelTimeouts timeouts{std::chrono::milliseconds(100), std::chrono::milliseconds(10'000)};
  EXPECT_NO_THROW(make_process_scheduler(timeouts)->cancel({id, "job-a"}, {}));
  EXPECT_EQ(status(id).state, JobState::kEnded);
  write_file_atomic(folder_ / "go", "");
}

TEST_F(ProcessScheduler, AProcessThatOutlivesTheScriptKeepsTheJobRunning) {
  const JobId id = start("sleep 60 & echo $! >child.part; mv child.part child");
  await([&] { return exists("child"); });
  const pid_t leader = std::stoi(id.str());
  await([&] { return !process_start_ticks(leader); });
  EXPECT_EQ(status(id).state, JobState::kRunning);
  scheduler_->cancel({id, "job-a"}, {});
  EXPECT_EQ(status(id).state, JobState::kEnded);
  EXPECT_FALSE(process_start_ticks(std::stoi(content("child"))));
}

// `xffl exec` starts each rank in a group of its own.
TEST_F(ProcessScheduler, AProcessInAGroupOfItsOwnKeepsTheJobRunning) {
  const JobId id =
      start("bash -c 'set -m; sleep 60 & echo $! >child.part; mv child.part child' </dev/null");
  await([&] { return exists("child"); });
  const pid_t leader = std::stoi(id.str()), child = std::stoi(content("child"));
  await([&] { return !process_start_ticks(leader); });
  ASSERT_EQ(::getpgid(child), child);
  EXPECT_EQ(status(id).state, JobState::kRunning);
  scheduler_->cancel({id, "job-a"}, {});
  EXPECT_EQ(status(id).state, JobState::kEnded);
  const bool survives = process_start_ticks(child).has_value();
  EXPECT_FALSE(survives);
  if (survives) ::kill(child, SIGKILL);
}

// In a container whose first process reaps nobody, an orphan stays a zombie for ever. The zombie of
// this test has a parent that has left the job's session.
TEST_F(ProcessScheduler, AZombieDoesNotKeepTheJobRunning) {
  const JobId id = start(
      "exec python3 -c '\n"
      "import os, time\n"
      "if os.fork() == 0:\n"
      "  if os.fork() == 0: os._exit(0)\n"
      "  os.setsid()\n"
      "  open(\"apart\", \"w\").close()\n"
      "  for _ in range(3000):\n"
      "    if os.path.exists(\"go\"): break\n"
      "    time.sleep(0.02)'");
  EXPECT_TRUE(test::await([&] { return exists("apart"); }));
  await_end(id);
  write_file_atomic(folder_ / "go", "");
}

TEST_F(ProcessScheduler, AJobSurvivesSigkillOfItsCoordinator) {
  const pid_t coordinator = ::fork();
  if (coordinator == 0) {
    make_process_scheduler()->submit(
        request("mkdir claim; read -r stat </proc/$$/stat; set -- ${stat##*) }\n"
                "echo \"$$.${20} n\" >o; mv o claim/owner; while [ ! -e go ]; do sleep 0.02; done\n"
                "touch done"),
        {});
    ::raise(SIGKILL);
  }
  int ending = 0;
  ASSERT_EQ(::waitpid(coordinator, &ending, 0), coordinator);
  ASSERT_TRUE(WIFSIGNALED(ending));
  await([&] { return !found().empty(); });
  const JobId id = found().at(0);
  started_.push_back(id);
  EXPECT_EQ(status(id).state, JobState::kRunning);
  write_file_atomic(folder_ / "go", "");
  await_end(id);
  EXPECT_TRUE(exists("done"));
}

// A process of another user ignores the signals like a process in state D: cancel() throws instead
// of waiting forever.
TEST_F(ProcessScheduler, CancelReportsAJobThatCannotBeKilled) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become a user who may not kill the job";
  const JobId id = start("echo $$ >pid; while [ ! -e go ]; do sleep 0.1; done");
  await([&] { return exists("pid"); });
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setuid(65534) != 0) ::_exit(2);
    try {
      const CancelTimeouts timeouts{std::chrono::milliseconds(100), std::chrono::milliseconds(200)};
      make_process_scheduler(timeouts)->cancel({id, "job-a"}, {});
    } catch (const Error& error) {
      const bool reported = std::string(error.what()).find("has not ended") != std::string::npos;
      ::_exit(error.kind() == ErrorKind::kRemote && reported ? 0 : 3);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0) << "exit code " << WEXITSTATUS(status);
  write_file_atomic(folder_ / "go", "");
  await_end(id);
}

TEST_F(ProcessScheduler, ASecondStartOfTheShippedScriptTrainsNothing) {
  const std::string script = render_template(
      shipped_template("process"), "job.sh",
      {{"job_name", "job-a"},
       {"folder", folder_.string()},
       {"nonce", "0123456789abcdef0123456789abcdef"},
       {"environment", std::vector<std::string>{}},
       {"launch", std::vector<std::string>{"sh", "-c", "echo trained >>effects; sleep 60"}}});
  const JobId first = start(script);
  await([&] { return exists("effects") && content("effects") == "trained\n"; });
  EXPECT_EQ(found(), std::vector{first});
  const JobId second = start(script);
  EXPECT_NE(first, second);
  await_end(second);
  EXPECT_EQ(found(), std::vector{first});
  EXPECT_EQ(status(first).state, JobState::kRunning);
  EXPECT_EQ(content("effects"), "trained\n");
}

}  // namespace
}  // namespace xffl::submit
