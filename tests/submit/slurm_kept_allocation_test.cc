// Kept allocations: the commands in a real shell, and the scheduler that sends them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>

#include "slurm_commands.h"
#include "support/fake_clock.h"
#include "support/fake_session.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

namespace fs = std::filesystem;
using remote::CommandResult;
using testing::ElementsAre;
using testing::HasSubstr;

class KeptAllocationFiles : public testing::Test {
 protected:
  KeptAllocationFiles() {
    make_dirs(folder() / "claim");
    make_dirs(next());
    write_file_atomic(folder() / "claim/owner", "7 nonce word 0\n");
  }
  fs::path folder() const { return dir_ / "r1's"; }
  fs::path next() const { return dir_ / "r2"; }
  void put(const std::string& state) const { write_file_atomic(folder() / ("stay." + state), ""); }
  std::string state() const {
    std::string found;
    for (const auto& entry : fs::directory_iterator(folder()))
      if (entry.path().stem() == "stay") found += entry.path().extension();
    return found;
  }
  KeptAllocation kept(const std::string& job = "7") const {
    return {JobId(job), RemotePath(folder().string())};
  }
  CommandResult run(const std::vector<std::string>& argv) {
    return session_->run(argv, "#!/bin/bash\n", std::chrono::seconds(20), {});
  }
  TakeResult take(bool wait = true, const std::string& job = "7") {
    return read_take_result(
        run(take_command(kept(job), RemotePath(next().string()), "#!/bin/bash\n", wait)));
  }
  bool has_script() const { return fs::exists(next() / "job.sh"); }

  test::TempDir dir_;
  std::unique_ptr<remote::Session> session_ = remote::make_local_session();
};

// The coordinator is killed, or the connection breaks, while it sends the script.
TEST_F(KeptAllocationFiles, IsNotTakenWithAPartOfTheScript) {
  put("offered");
  const std::vector<std::string> argv =
      take_command(kept(), RemotePath(next().string()), "#!/bin/bash\nexec true\n", true);
  EXPECT_NE(run(argv).exit_code, 0);
  EXPECT_NE(session_->run(argv, "", std::chrono::seconds(20), {}).exit_code, 0);
  EXPECT_EQ(state(), ".offered") << "another coordinator can take it";
  EXPECT_FALSE(has_script());
}

TEST_F(KeptAllocationFiles, IsTakenAfterTheScriptIsWritten) {
  put("offered");
  EXPECT_EQ(take(), TakeResult::kTaken);
  EXPECT_EQ(state(), ".taken");
  EXPECT_EQ(read_file(next() / "job.sh", 100), "#!/bin/bash\n");
  EXPECT_EQ(take(), TakeResult::kTaken) << "the first answer may have been lost";
}

TEST_F(KeptAllocationFiles, IsNotTakenWhenTheScriptCannotBeWritten) {
  put("offered");
  fs::remove_all(next());
  EXPECT_THROW(take(), Error);
  EXPECT_EQ(state(), ".offered");
}

TEST_F(KeptAllocationFiles, APlannedAllocationIsClosedWithoutWaiting) {
  put("planned");
  EXPECT_EQ(take(), TakeResult::kPlanned);
  EXPECT_EQ(state(), ".planned");
  EXPECT_EQ(take(false), TakeResult::kNone);
  EXPECT_EQ(state(), ".closed");
}

TEST_F(KeptAllocationFiles, AbsentOrClosedGivesNone) {
  EXPECT_EQ(take(), TakeResult::kNone);
  put("closed");
  EXPECT_EQ(take(), TakeResult::kNone);
  EXPECT_FALSE(has_script());
  fs::remove_all(folder());
  EXPECT_EQ(take(), TakeResult::kNone);
}

// A duplicate job, submitted by hand, has trained: it is not the job of the journal.
TEST_F(KeptAllocationFiles, AnotherJobsAllocationIsReleased) {
  put("offered");
  EXPECT_EQ(take(true, "8"), TakeResult::kNone);
  EXPECT_EQ(state(), ".closed");
  EXPECT_FALSE(has_script());
}

TEST_F(KeptAllocationFiles, ReleaseClosesUnlessTaken) {
  for (const char* before : {"planned", "offered", "taken", ""}) {
    fs::remove(folder() / "stay.closed");
    if (*before) put(before);
    EXPECT_EQ(run(release_command(kept())).exit_code, 0);
    EXPECT_EQ(state(), *before == 't' ? ".taken" : *before ? ".closed" : "") << before;
    fs::remove(folder() / "stay.taken");
  }
}

// The job's script renames stay.planned between two calls of mv.
TEST_F(KeptAllocationFiles, AnOfferBetweenTwoStepsKeepsNoAllocation) {
  make_dirs(dir_ / "bin");
  write_file_atomic(dir_ / "bin/mv", R"sh(#!/bin/sh
case "$*" in *job.sh) exec /bin/mv "$@" ;; esac
/bin/mv "$@"
code=$?
/bin/mv stay.planned stay.offered 2>/dev/null
exit $code
)sh");
  fs::permissions(dir_ / "bin/mv", fs::perms::owner_all);
  const auto run_slowly = [&](std::vector<std::string> argv) {
    argv.insert(argv.begin(), {"env", "PATH=" + (dir_ / "bin").string() + ":/usr/bin:/bin"});
    return run(argv);
  };
  put("planned");
  EXPECT_EQ(run_slowly(release_command(kept())).exit_code, 0);
  EXPECT_EQ(state(), ".closed");
  for (const char* job : {"7", "8"}) {
    fs::remove(folder() / "stay.closed");
    put("planned");
    EXPECT_EQ(read_take_result(run_slowly(
                  take_command(kept(job), RemotePath(next().string()), "#!/bin/bash\n", false))),
              TakeResult::kNone);
    EXPECT_EQ(state(), ".closed") << job;
  }
}

TEST(ReadTakeResult, RejectsUnexpectedOutput) {
  for (const CommandResult& answer :
       {CommandResult{0, "", ""}, CommandResult{0, "taken\nnone\n", ""},
        CommandResult{1, "taken\n", ""}, CommandResult{0, "taken", ""}})
    EXPECT_THROW(read_take_result(answer), Error) << answer.out;
}

const KeptAllocation kKept{JobId("7"), RemotePath("/w/r1/a1")};
const JobRequest kRequest{"xffl-p-0001-r0002-a-a1", "#!/bin/sh\n", RemotePath("/w/r2/a1"), kKept};
const std::string kFirstName = "xffl-p-0001-r0001-a-a1";

class KeptJob : public testing::Test {
 protected:
  KeptJob() {
    session_->make_dirs(kKept.folder);
    session_->on_run = [this](const std::vector<std::string>& argv, const std::string& text) {
      const auto names = [&](const char* word) { return std::ranges::count(argv, word) > 0; };
      if (names("sbatch")) return asked_.emplace_back("sbatch"), CommandResult{0, "9\n", ""};
      if (names("squeue")) return asked_.emplace_back("squeue"), squeue_ = argv, queue_;
      if (names("sacct")) return CommandResult{1, "", "Slurm accounting storage is disabled\n"};
      if (names("scancel")) {
        asked_.push_back(argv[argv.size() - 2]);
        return CommandResult{0, "", ""};
      }
      take_ = argv;
      script_ = text;
      asked_.push_back(argv.at(argv.size() - 2) == "wait" ? "take" : "take now");
      CommandResult answer = answers_.front();
      if (answers_.size() > 1) answers_.pop_front();
      if (answer.exit_code < 0) throw Error(ErrorKind::kRemote, "the link is down");
      return answer;
    };
  }
  Scheduler& scheduler() {
    if (!scheduler_) scheduler_ = make_slurm_scheduler({}, session_, clock_);
    return *scheduler_;
  }

  test::FakeClock clock_;
  std::shared_ptr<test::FakeSession> session_ = std::make_shared<test::FakeSession>();
  std::deque<CommandResult> answers_;
  CommandResult queue_{0, "1000\nxffl-end\n", ""};
  std::vector<std::string> asked_;
  std::vector<std::string> squeue_, take_;  // the last commands
  std::string script_;                      // the input of take_
  std::shared_ptr<Scheduler> scheduler_;
};

TEST_F(KeptJob, IsTakenInsteadOfSubmittingAJob) {
  answers_ = {{0, "planned\n", ""}, {0, "planned\n", ""}, {0, "taken\n", ""}};
  JobRequest request = kRequest;
  request.nodes_folder = RemotePath("/compute/r2/a1");
  EXPECT_EQ(scheduler().submit(request, {}), JobId("7"));
  EXPECT_THAT(asked_, ElementsAre("take", "take", "take"));
  EXPECT_THAT(std::vector(take_.end() - 5, take_.end()),
              ElementsAre("/w/r1/a1", "7", "/w/r2/a1", "wait", "10"))
      << "the paths of the login node, which writes the script";
  EXPECT_EQ(script_, kRequest.script);
}

TEST_F(KeptJob, WithoutOneAJobIsSubmitted) {
  answers_ = {{0, "none\n", ""}};
  EXPECT_EQ(scheduler().submit(kRequest, {}), JobId("9"));
  EXPECT_THAT(asked_, ElementsAre("take", "sbatch"));
}

TEST_F(KeptJob, AJobIsSubmittedAfterTheOfferTimeout) {
  answers_ = {{0, "planned\n", ""}};
  const auto began = clock_.monotonic();
  EXPECT_EQ(scheduler().submit(kRequest, {}), JobId("9"));
  EXPECT_GE(clock_.monotonic() - began, std::chrono::seconds(30));
  EXPECT_LE(clock_.monotonic() - began, std::chrono::seconds(32));
  ASSERT_GE(asked_.size(), 3u);
  EXPECT_EQ(asked_[asked_.size() - 2], "take now");
}

TEST_F(KeptJob, AStopDuringTheWaitForItsOfferSubmitsNothing) {
  answers_ = {{0, "planned\n", ""}};
  std::stop_source stop;
  clock_.on_sleep = [&] { stop.request_stop(); };
  EXPECT_EQ(test::kind_of([&] { scheduler().submit(kRequest, stop.get_token()); }),
            ErrorKind::kCancelled);
  EXPECT_THAT(asked_, ElementsAre("take"));
}

TEST_F(KeptJob, AfterALostAnswerTheTakenFileDecides) {
  answers_ = {{-1, "", ""}};
  try {
    scheduler().submit(kRequest, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRemote);
  }
  EXPECT_THAT(asked_, ElementsAre("take"));
  EXPECT_TRUE(scheduler().find(kRequest, {}).empty());
  session_->put(kKept.folder.str() + "/stay.taken", "");
  EXPECT_THAT(scheduler().find(kRequest, {}), ElementsAre(JobId("7")));
  JobRequest other = kRequest;
  other.kept_allocation.reset();
  EXPECT_TRUE(scheduler().find(other, {}).empty());
}

TEST_F(KeptJob, AnIdThatIsNoSlurmIdIsIgnored) {
  JobRequest odd = kRequest;
  odd.kept_allocation->job = JobId("7.1");
  EXPECT_EQ(scheduler().submit(odd, {}), JobId("9"));
  session_->put(kKept.folder.str() + "/stay.taken", "");
  EXPECT_TRUE(scheduler().find(odd, {}).empty());
}

TEST_F(KeptJob, AFailedReleaseIsAnError) {
  answers_ = {{255, "", "the connection was closed\n"}, {0, "", ""}};
  EXPECT_EQ(test::kind_of([&] { scheduler().release(kKept, {}); }), ErrorKind::kRemote);
  EXPECT_NO_THROW(scheduler().release(kKept, {}));
}

TEST_F(KeptJob, IsQueriedAndCancelledByTheNameOfItsSubmission) {
  const auto state = [&](const std::string& name) {
    queue_.out = "1000\n7|" + name + "|RUNNING|1060|10:00|/w/r1/a1|n1|None\nxffl-end\n";
    const SubmittedJob job{JobId("7"), kRequest.name, kFirstName};
    return scheduler().query(std::span(&job, 1), {}).at(job.id).state;
  };
  EXPECT_EQ(state(kFirstName), JobState::kRunning);
  EXPECT_THAT(squeue_, testing::Contains("--name=" + kRequest.name + "," + kFirstName));
  EXPECT_EQ(state(kRequest.name), JobState::kRunning) << "the id was reused";
  EXPECT_EQ(state("other"), JobState::kUnknown);
  asked_.clear();
  scheduler().cancel({JobId("7"), kRequest.name, kFirstName}, {});
  EXPECT_THAT(asked_, ElementsAre("--name=" + kFirstName, "--name=" + kRequest.name));
}

}  // namespace
}  // namespace xffl::submit
