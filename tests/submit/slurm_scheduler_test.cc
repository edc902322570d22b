// The Slurm scheduler against scripted answers of Slurm: its commands and its results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <sstream>

#include "slurm_commands.h"
#include "support/fake_clock.h"
#include "support/fake_session.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

using remote::CommandResult;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kName = "xffl-p-0001-r0001-a-a1";
const RemotePath kFolder("/scratch/me/a1");
const JobRequest kRequest{kName, "#!/bin/sh\ntrue\n", kFolder};

std::string queue(const std::string& rows) { return "1000\n" + rows + "xffl-end\n"; }
std::string row(const std::string& id, const std::string& state, const std::string& name = kName,
                const std::string& folder = kFolder.str()) {
  return id + "|" + name + "|" + state + "|1060|10:00|" + folder + "|n1|None\n";
}

// Each word is needed for a complete answer, or against a variable of the site's profile.
TEST(SlurmCommands, HaveTheWordsThatTheirAnswersNeed) {
  const auto expect = [](const std::vector<std::string>& argv,
                         const std::vector<std::string>& words) {
    for (const std::string& word : words) EXPECT_THAT(argv, Contains(word));
  };
  expect(queue_command({kName}, ""),
         {"squeue", "--noheader", "--me", "--states=all", "SLURM_TIME_FORMAT=%s",
          "--format=%A|%j|%T|%S|%L|%Z|%N|%r", "SQUEUE_STATES", "SQUEUE_FORMAT", "SQUEUE_FORMAT2",
          "SQUEUE_PARTITION", "SQUEUE_ACCOUNT", "SQUEUE_ACCOUNTS", "SQUEUE_QOS", "SQUEUE_LICENSES",
          "SQUEUE_NAMES", "SQUEUE_USERS", "SQUEUE_LOCAL", "SQUEUE_FEDERATION", "SLURM_CLUSTERS"});
  expect(accounting_command({kName, "first"}, ""),
         {"sacct", "--noheader", "--parsable2", "--allocations", "--name=" + kName + ",first",
          "--format=JobIDRaw,JobName,State,NodeList,WorkDir", "SACCT_FORMAT"});
  expect(starts_command({"7", "8"}, "twin"),
         {"sacct", "--noheader", "--parsable2", "--duplicates", "--allocations", "--jobs=7,8",
          "--clusters=twin", "SLURM_TIME_FORMAT=%s",
          "--format=JobIDRaw,JobName,State,Start,End,NNodes,ConsumedEnergyRaw,AllocTRES"});
  expect(cancel_command("7", kName, ""),
         {"scancel", "--me", "SCANCEL_ACCOUNT", "SCANCEL_BATCH", "SCANCEL_CTLD",
          "SCANCEL_INTERACTIVE", "SCANCEL_NAME", "SCANCEL_PARTITION", "SCANCEL_QOS",
          "SCANCEL_STATE", "SCANCEL_USER", "SCANCEL_WCKEY", "SLURM_CLUSTERS"});
  expect(submit_command({}, "x", false),
         {"sbatch", "SBATCH_ARRAY_INX", "SBATCH_TEST_ONLY", "SBATCH_WAIT", "SLURM_CLUSTERS"});
}

// The end mark makes an answer whole, also one without jobs.
TEST(SlurmCommands, AFailureOfTheirProgramHasNoEndMark) {
  const test::TempDir dir;
  for (const char* program : {"squeue", "sacct"}) {
    write_file_atomic(dir / program, "#!/bin/sh\nexit 1\n");
    std::filesystem::permissions(dir / program, std::filesystem::perms::owner_all);
  }
  const auto session = remote::make_local_session();
  const std::vector<std::vector<std::string>> commands{
      queue_command({kName}, ""), accounting_command({kName}, ""), starts_command({"7"}, "")};
  for (std::vector<std::string> argv : commands) {
    argv.insert(std::find(argv.begin(), argv.end(), "sh"),
                "PATH=" + dir.path().string() + ":/usr/bin:/bin");
    const CommandResult answer = session->run(argv, "", std::chrono::seconds(20), {});
    EXPECT_NE(answer.exit_code, 0) << testing::PrintToString(argv);
    EXPECT_THAT(answer.out, Not(HasSubstr("xffl-end"))) << testing::PrintToString(argv);
  }
}

class SlurmScheduler : public testing::Test {
 protected:
  SlurmScheduler() {
    session_->on_run = [this](const std::vector<std::string>& argv, const std::string& text) {
      clock_.advance(round_trip_);
      // The first Slurm program in argv.
      std::string program;
      for (const std::string& word : argv)
        if (program.empty() &&
            (word == "sbatch" || word == "squeue" || word == "sacct" || word == "scancel"))
          program = word;
      asked_.push_back(program);
      last_ = argv;
      stdin_ = text;
      auto& answers = answers_[program];
      if (answers.empty()) return CommandResult{1, "", "no answer was scripted for " + program};
      CommandResult answer = answers.front();
      if (answers.size() > 1) answers.pop_front();
      if (answer.exit_code < 0) throw Error(ErrorKind::kRemote, "the link is down");
      return answer;
    };
  }

  void says(const std::string& program, CommandResult answer) {
    answers_[program] = {std::move(answer)};
  }
  JobStatus status_of(const std::string& id) {
    const SubmittedJob job{JobId(id), kName};
    return scheduler().query(std::span(&job, 1), {}).at(job.id);
  }
  Scheduler& scheduler() {
    if (!scheduler_) scheduler_ = make_slurm_scheduler(settings_, session_, clock_);
    return *scheduler_;
  }
  ErrorKind submit_error() {
    try {
      scheduler().submit({kName, "#!/bin/sh\n", kFolder}, {});
    } catch (const Error& error) {
      message_ = error.what();
      return error.kind();
    }
    return ErrorKind::kInternal;
  }

  test::FakeClock clock_;
  std::shared_ptr<test::FakeSession> session_ = std::make_shared<test::FakeSession>();
  std::chrono::seconds round_trip_{0};  // the time of a command
  SlurmSettings settings_;
  std::map<std::string, std::deque<CommandResult>> answers_;
  std::vector<std::string> asked_, last_;
  std::string stdin_, message_;
  std::shared_ptr<Scheduler> scheduler_;
  const CommandResult link_down_{-1, "", ""};
  const CommandResult no_accounting_{1, "", "Slurm accounting storage is disabled\n"};
};

TEST_F(SlurmScheduler, EachAnswerShowsTheFacilitysClock) {
  EXPECT_FALSE(scheduler().clock_offset());
  says("sacct", {0, "xffl-end\n", ""});
  says("squeue", {1, "nonsense", "slurm_load_jobs error"});
  EXPECT_THROW(status_of("41"), Error);
  EXPECT_FALSE(scheduler().clock_offset());
  says("squeue", {0, "1767225660\nxffl-end\n", ""});  // a minute ahead of the test's clock
  status_of("41");
  ASSERT_TRUE(scheduler().clock_offset());
  EXPECT_EQ(*scheduler().clock_offset(), (ClockOffset{.offset = 60.5, .error = 0.5}));
  scheduler_.reset();
  round_trip_ = std::chrono::seconds(2);
  status_of("41");
  ASSERT_TRUE(scheduler().clock_offset());
  EXPECT_EQ(*scheduler().clock_offset(), (ClockOffset{.offset = 59.5, .error = 1.5}));
}

// The facility's clock is a day behind, equal, or a day ahead of the coordinator's. Slurm's times
// count from the facility's own clock, and sacct's window is relative to it.
TEST_F(SlurmScheduler, AClusterClockADayAwayChangesNoAnswer) {
  constexpr int64_t kHere = 1767225600;  // FakeClock
  for (const int64_t shift : {-86'400, 0, 86'400}) {
    const int64_t now = kHere + shift;
    const auto answer = [&](const std::string& state, const std::string& reason) {
      return CommandResult{0,
                           std::to_string(now) + "\n41|" + kName + "|" + state + "|" +
                               std::to_string(now + 60) + "|10:00|" + kFolder.str() + "|n1|" +
                               reason + "\nxffl-end\n",
                           ""};
    };
    says("sacct", {0, "41|" + kName + "|TIMEOUT|n1|" + kFolder.str() + "\nxffl-end\n", ""});
    says("squeue", answer("PENDING", "Priority"));
    const JobStatus pending = status_of("41");
    EXPECT_EQ(pending.state, JobState::kPending) << shift;
    EXPECT_EQ(pending.starts_in, std::chrono::seconds(60)) << shift;
    says("squeue", answer("RUNNING", "None"));
    const JobStatus running = status_of("41");
    EXPECT_EQ(running.state, JobState::kRunning) << shift;
    EXPECT_EQ(running.ends_in, std::chrono::minutes(10)) << shift;
    EXPECT_THAT(scheduler().find(kRequest, {}), ElementsAre(JobId("41"))) << shift;
    says("squeue", {0, std::to_string(now) + "\nxffl-end\n", ""});
    EXPECT_EQ(status_of("41").state, JobState::kEnded) << shift;
    EXPECT_EQ(status_of("41").native, "TIMEOUT") << shift;
    EXPECT_THAT(last_, Contains("--starttime=now-30days")) << shift;
    EXPECT_EQ(*scheduler().clock_offset(),
              (ClockOffset{.offset = static_cast<double>(shift) + 0.5, .error = 0.5}));
    scheduler_.reset();
    answers_.clear();
  }
}

TEST_F(SlurmScheduler, SubmitsTheScriptOnStdinAndEachOptionAsOneArgument) {
  settings_ = {.account = "acc",
               .partition = "boost",
               .nodes = 2,
               .gpus_per_node = 4,
               .tasks_per_node = 4,
               .time = std::chrono::hours(36),
               .extra = {"--mail-type=END"}};
  says("sbatch", {0, "4711\n", ""});
  EXPECT_EQ(scheduler().submit({kName, "#!/bin/sh\ntrue\n", kFolder}, {}), JobId("4711"));
  EXPECT_EQ(stdin_, "#!/bin/sh\ntrue\n");
  for (const char* word :
       {"--parsable", "--job-name=xffl-p-0001-r0001-a-a1", "--dependency=singleton",
        "--signal=B:USR1@300", "--export=NONE", "--chdir=/scratch/me/a1", "--account=acc",
        "--partition=boost", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4",
        "--time=36:00:00", "--mail-type=END", "LC_ALL=C", "SBATCH_WAIT", "--output=job.out",
        "--open-mode=append", "--input=/dev/null"})
    EXPECT_THAT(last_, Contains(word));
  EXPECT_EQ(last_.front(), "env");
}

// The coordinator is killed, or the connection breaks, while it sends the script: a submitted part
// would end without an update, or run without its limits.
TEST(SubmitCommand, SubmitsNoPartOfAScript) {
  const test::TempDir dir;
  const std::string submitted = (dir / "submitted").string();
  write_file_atomic(dir / "sbatch", "#!/bin/sh\ncat >" + submitted + "\n");
  std::filesystem::permissions(dir / "sbatch", std::filesystem::perms::owner_all);
  const std::string script = "#!/bin/sh\necho '\\n %s é'\n\n";
  std::vector<std::string> argv = submit_command({"--nodes=1"}, script, false);
  argv.insert(std::find(argv.begin(), argv.end(), "sh"),
              "PATH=" + dir.path().string() + ":/usr/bin:/bin");
  const auto session = remote::make_local_session();
  for (const size_t size : {size_t{0}, size_t{9}, script.size() - 1}) {
    const CommandResult answer =
        session->run(argv, script.substr(0, size), std::chrono::seconds(20), {});
    EXPECT_EQ(answer.exit_code, 1);
    EXPECT_THAT(answer.err, HasSubstr("the script did not arrive whole"));
    EXPECT_FALSE(std::filesystem::exists(submitted));
  }
  EXPECT_EQ(session->run(argv, script, std::chrono::seconds(20), {}).exit_code, 0);
  EXPECT_EQ(read_file(submitted, 1000), script);
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(submitted).permissions(),
            perms::owner_read | perms::owner_write)
      << "the job's output has the umask of sbatch";
}

TEST_F(SlurmScheduler, ALostOrUnexpectedAnswerLeavesTheOutcomeUnknown) {
  says("sbatch", link_down_);
  EXPECT_EQ(submit_error(), ErrorKind::kRemote);
  says("sbatch",
       {1, "",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"});
  EXPECT_EQ(submit_error(), ErrorKind::kRemote);
  says("sbatch", {0, "hello\n4711\n", ""});
  EXPECT_EQ(submit_error(), ErrorKind::kRemote);
}

TEST_F(SlurmScheduler, ARejectionCarriesSlurmsMessage) {
  says("sbatch",
       {1, "", "sbatch: error: Batch job submission failed: Invalid qos specification\n"});
  EXPECT_EQ(submit_error(), ErrorKind::kConfig);
  EXPECT_THAT(message_, HasSubstr("Invalid qos specification"));
  says("sbatch", {1, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"});
  EXPECT_EQ(submit_error(), ErrorKind::kBusy);
}

TEST_F(SlurmScheduler, SubmitsNothingAfterAStopOrForAnInvalidName) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW(scheduler().submit({kName, "x", kFolder}, stop.get_token()), Error);
  EXPECT_THROW(scheduler().submit({"a,b", "x", kFolder}, {}), Error);
  EXPECT_THROW(scheduler().submit({kName, "", kFolder}, {}), Error);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(SlurmScheduler, OneQueryAnswersForAllJobs) {
  const std::string other = "xffl-p-0001-r0001-b-a1";
  says("squeue", {0, queue(row("7", "RUNNING") + row("8", "PENDING", other)), ""});
  const std::vector<SubmittedJob> jobs{{JobId("7"), kName}, {JobId("8"), other}};
  const auto states = scheduler().query(jobs, {});
  EXPECT_EQ(states.at(JobId("7")).state, JobState::kRunning);
  EXPECT_EQ(states.at(JobId("7")).ends_in, std::chrono::seconds(600));
  EXPECT_EQ(states.at(JobId("8")).state, JobState::kPending);
  EXPECT_EQ(states.at(JobId("8")).starts_in, std::chrono::seconds(60));
  EXPECT_THAT(asked_, ElementsAre("squeue"));
  EXPECT_THAT(last_, Contains("--name=" + kName + "," + other));
}

TEST_F(SlurmScheduler, AnotherJobWithAReusedIdIsUnknown) {
  says("squeue", {0, queue(row("7", "COMPLETED", "another-job")), ""});
  says("sacct", no_accounting_);
  EXPECT_EQ(status_of("7").state, JobState::kUnknown);
}

TEST_F(SlurmScheduler, AsksTheAccountingAboutJobsThatSqueueForgot) {
  says("squeue", {0, queue(""), ""});
  says("sacct", {0,
                 "7|" + kName + "|NODE_FAIL|n1|/scratch/me/a1\n7|" + kName +
                     "|TIMEOUT|n1|/scratch/me/a1\nxffl-end\n",
                 ""});
  EXPECT_EQ(status_of("7").state, JobState::kEnded);
  EXPECT_EQ(status_of("7").cause, EndCause::kWalltime) << "the last start counts";
  EXPECT_EQ(status_of("8").state, JobState::kUnknown);
}

TEST_F(SlurmScheduler, AsksAnAbsentAccountingOnce) {
  says("squeue", {0, queue(""), ""});
  says("sacct", no_accounting_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(status_of("7").state, JobState::kUnknown);
  EXPECT_THAT(asked_, ElementsAre("squeue", "sacct", "squeue", "squeue"));
}

TEST_F(SlurmScheduler, AsksASilentAccountingAgainLater) {
  says("squeue", {0, queue(""), ""});
  says("sacct", link_down_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(status_of("7").state, JobState::kUnknown);
  EXPECT_THAT(asked_, ElementsAre("squeue", "sacct", "squeue", "squeue"));
  clock_.advance(std::chrono::minutes(6));
  says("sacct", {0, "7|" + kName + "|COMPLETED|n1|/scratch/me/a1\nxffl-end\n", ""});
  EXPECT_EQ(status_of("7").state, JobState::kEnded);
}

// A decision does not rest on the pause after one silent sacct: neither the end of a job nor a new
// submission.
TEST_F(SlurmScheduler, AsksASilentAccountingAgainAtADecision) {
  says("squeue", {0, queue(""), ""});
  says("sacct", link_down_);
  EXPECT_EQ(status_of("7").state, JobState::kUnknown);
  says("sacct", {0, "7|" + kName + "|OUT_OF_MEMORY|n1|/scratch/me/a1\nxffl-end\n", ""});
  EXPECT_EQ(status_of("7").state, JobState::kUnknown) << "the pause";
  const SubmittedJob job{JobId("7"), kName, "", true};
  const JobStatus status = scheduler().query(std::span(&job, 1), {}).at(job.id);
  EXPECT_EQ(status.state, JobState::kEnded);
  EXPECT_EQ(status.cause, EndCause::kOutOfMemory);
  EXPECT_THAT(scheduler().find(kRequest, {}), ElementsAre(JobId("7")));
  EXPECT_THAT(asked_,
              ElementsAre("squeue", "sacct", "squeue", "squeue", "sacct", "squeue", "sacct"));
}

// Of an accounting that has answered before, silence is no answer. Where sacct never answers, the
// queue alone decides.
TEST_F(SlurmScheduler, ADecisionWaitsForAnAccountingThatHasAnsweredBefore) {
  const SubmittedJob job{JobId("7"), kName, "", true};
  says("squeue", {0, queue(""), ""});
  for (const CommandResult& silence :
       {CommandResult{1, "", "sacct: error: Problem talking to the database\n"},
        CommandResult{0, "7|half a ro", ""}, link_down_}) {
    says("sacct", silence);
    EXPECT_EQ(scheduler().query(std::span(&job, 1), {}).at(job.id).state, JobState::kUnknown);
  }
  says("sacct", {0, "xffl-end\n", ""});
  EXPECT_EQ(scheduler().query(std::span(&job, 1), {}).at(job.id).state, JobState::kUnknown);
  says("sacct", {1, "", "sacct: error: Problem talking to the database\n"});
  try {
    scheduler().query(std::span(&job, 1), {});
    FAIL() << "silence is no answer";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRemote);
    EXPECT_THAT(error.what(), HasSubstr("sacct does not answer"));
  }
  EXPECT_TRUE(scheduler().find(kRequest, {}).empty()) << "the claim keeps jobs apart";
  EXPECT_EQ(status_of("7").state, JobState::kUnknown) << "no decision";
}

TEST_F(SlurmScheduler, ADecisionAboutOneOfSeveralJobsWaitsForTheAccounting) {
  const std::vector<SubmittedJob> jobs{{JobId("7"), kName, "", true}, {JobId("8"), "other"}};
  says("squeue", {0, queue(""), ""});
  says("sacct", {0, "xffl-end\n", ""});
  EXPECT_EQ(scheduler().query(jobs, {}).at(JobId("7")).state, JobState::kUnknown);
  says("sacct", {1, "", "sacct: error: Problem talking to the database\n"});
  EXPECT_THROW(scheduler().query(jobs, {}), Error);
}

TEST_F(SlurmScheduler, AnIncompleteAnswerOfSqueueDoesNotEndAJob) {
  for (const CommandResult& answer :
       {CommandResult{
            1, "1000\n",
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"},
        CommandResult{0, "1000\n" + row("7", "COMPLETED"), ""}, CommandResult{0, "", ""},
        CommandResult{0, queue("Slurm is in maintenance until 18:00\n"), ""}, link_down_}) {
    says("squeue", answer);
    try {
      status_of("7");
      FAIL() << answer.out;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kRemote);
    }
    EXPECT_THROW(scheduler().find(kRequest, {}), Error);
  }
}

TEST_F(SlurmScheduler, FindsJobsOfTheNameInTheFolderOldestFirst) {
  says("squeue", {0,
                  queue("10|" + kName + "|PENDING|N/A|10:00|/scratch/me/a1||Priority\n" +
                        row("9", "COMPLETED") + row("8", "RUNNING", kName, "/scratch/me/other") +
                        row("3", "RUNNING", "x")),
                  ""});
  says("sacct", {0,
                 "9|" + kName + "|COMPLETED|n1|/scratch/me/a1\n5|" + kName +
                     "|FAILED|n1|/scratch/me/a1\nxffl-end\n",
                 ""});
  EXPECT_THAT(scheduler().find(kRequest, {}), ElementsAre(JobId("5"), JobId("9"), JobId("10")));
  EXPECT_TRUE(scheduler().find({"a,b", "", kFolder}, {}).empty());
  // The record of a rejected submission is no job.
  says("squeue",
       {0, queue("11|" + kName + "|FAILED|1060|10:00|/scratch/me/a1||BadConstraints\n"), ""});
  says("sacct", {0, "11|" + kName + "|FAILED|None assigned|/scratch/me/a1\nxffl-end\n", ""});
  EXPECT_TRUE(scheduler().find(kRequest, {}).empty());
  // A job whose prolog failed is one: its replacement, of the same name, would wait for it.
  says(
      "squeue",
      {0, queue("12|" + kName + "|PENDING|N/A|10:00|/scratch/me/a1||launch failed requeued held\n"),
       ""});
  says("sacct", {0, "xffl-end\n", ""});
  EXPECT_THAT(scheduler().find(kRequest, {}), ElementsAre(JobId("12")));
}

TEST_F(SlurmScheduler, FindsAJobByItsFolderOnComputeNodes) {
  JobRequest request = kRequest;
  request.nodes_folder = RemotePath("/compute/a1");
  says("squeue", {0, queue(row("7", "RUNNING", kName, "/compute/a1") + row("8", "RUNNING")), ""});
  says("sacct", no_accounting_);
  EXPECT_THAT(scheduler().find(request, {}), ElementsAre(JobId("7")));
}

TEST_F(SlurmScheduler, CancelNamesTheJobAndIgnoresAnEndedJob) {
  says("scancel", {0, "", ""});
  scheduler().cancel({JobId("7"), kName}, {});
  EXPECT_THAT(last_, Contains("--name=" + kName));
  EXPECT_EQ(last_.back(), "7");
  for (const char* text : {"Invalid job id specified", "Job/step already completing or completed",
                           "Job has already finished"}) {
    says("scancel",
         {1, "", "scancel: error: Kill job error on job id 7: " + std::string(text) + "\n"});
    EXPECT_NO_THROW(scheduler().cancel({JobId("7"), kName}, {})) << text;
  }
  says("scancel",
       {140, "",
        "scancel: error: Kill job error on job id 7: Socket timed out on send/recv operation\n"});
  EXPECT_THROW(scheduler().cancel({JobId("7"), kName}, {}), Error);
  says("scancel",
       {0, "", "scancel: error: Kill job error on job id 7: Access/permission denied\n"});
  EXPECT_THROW(scheduler().cancel({JobId("7"), kName}, {}), Error) << "a status of 0";
  asked_.clear();
  scheduler().cancel({JobId("never-heard-of"), kName}, {});
  scheduler().cancel({JobId("7"), ""}, {});
  EXPECT_TRUE(asked_.empty());
}

TEST_F(SlurmScheduler, TestOnlyReturnsTheEstimateOrTheReason) {
  const JobRequest request{kName, "#!/bin/sh\n", kFolder};
  says("sbatch", {0, "", "sbatch: Job 21 to start at 2026-11-23T14:12:26 using 2 processors\n"});
  const TestOnly good = test_only(*session_, settings_, request, {});
  EXPECT_TRUE(good.accepted);
  EXPECT_THAT(good.answer, HasSubstr("to start at 2026-11-23"));
  EXPECT_THAT(last_, Contains("--test-only"));
  says("sbatch", {1, "", "allocation failure: Invalid partition name specified\n"});
  const TestOnly wrong = test_only(*session_, settings_, request, {});
  EXPECT_FALSE(wrong.accepted);
  EXPECT_TRUE(wrong.permanent);
  says("sbatch", {1, "", "allocation failure: Unable to contact slurm controller\n"});
  EXPECT_FALSE(test_only(*session_, settings_, request, {}).permanent) << "a retry may help";
}

TEST(AccountedStarts, AnotherJobWithAReusedIdIsLeftOut) {
  test::FakeSession session;
  session.on_run = [](const std::vector<std::string>&, const std::string&) {
    return remote::CommandResult{0,
                                 "7|ours|COMPLETED|1000|1100|2|0|\n"
                                 "8|theirs|COMPLETED|1000|9000|64|0|\n"
                                 "xffl-end\n",
                                 ""};
  };
  const std::vector<SubmittedJob> jobs{{JobId("7"), "ours"}, {JobId("8"), "ours-too"}};
  const std::vector<AccountedStart> starts = accounted_starts(session, {}, jobs, {});
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].job.str(), "7");
}

// One question to sacct holds 500 ids.
TEST(AccountedStarts, EachStartOfManyJobsIsShownOnce) {
  test::FakeSession session;
  session.on_run = [](const std::vector<std::string>& argv, const std::string&) {
    const std::string option = "--jobs=";
    std::string out;
    for (const std::string& word : argv) {
      if (!word.starts_with(option)) continue;
      std::istringstream ids(word.substr(option.size()));
      for (std::string id; std::getline(ids, id, ',');)
        out += id + "|job|COMPLETED|1000|1100|2|0|\n";
    }
    return CommandResult{0, out + "xffl-end\n", ""};
  };
  std::vector<SubmittedJob> jobs;
  for (int id = 1; id <= 1200; ++id) jobs.push_back({JobId(std::to_string(id)), "job"});
  EXPECT_EQ(accounted_starts(session, {}, jobs, {}).size(), 1200u);
}

// A sum of node-hours without some of the jobs would look like the whole one.
TEST(AccountedStarts, AFailureHidesNoStarts) {
  test::FakeSession session;
  int questions = 0;
  CommandResult second{1, "", "sacct: error: Problem talking to the database\n"};
  session.on_run = [&](const std::vector<std::string>&, const std::string&) {
    return ++questions % 2 == 0 ? second : CommandResult{0, "xffl-end\n", ""};
  };
  std::vector<SubmittedJob> jobs;
  for (int id = 1; id <= 600; ++id) jobs.push_back({JobId(std::to_string(id)), "job"});
  const auto ask = [&] { accounted_starts(session, {}, jobs, {}); };
  EXPECT_EQ(test::kind_of(ask), ErrorKind::kRemote);
  second = {0, "501|job|COMPLETED|1000|1100|2|0|\n", ""};  // no end mark
  EXPECT_EQ(test::kind_of(ask), ErrorKind::kRemote);
  second = {1, "", "Slurm accounting storage is disabled\n"};
  EXPECT_EQ(test::kind_of(ask), ErrorKind::kNotFound);
}

TEST(SlurmOptions, AJobUnderABudgetIsNotRequeued) {
  const RemotePath folder("/a");
  EXPECT_THAT(slurm_options({}, "xffl-a", folder),
              AllOf(Contains("--requeue"), Not(Contains("--no-requeue"))));
  EXPECT_THAT(slurm_options({}, "xffl-a", folder, false),
              AllOf(Contains("--no-requeue"), Not(Contains("--requeue"))));
}

TEST(SlurmOptions, NoValueAddsAnOption) {
  const auto with = [](auto change) {
    SlurmSettings settings;
    change(settings);
    return slurm_options(settings, "xffl-a", RemotePath("/a"));
  };
  for (const char* text :
       {"a b", "a\n#SBATCH --uid=0", "a\"", "a'", "a#b", "-x", "a;b", "$(id)", "a\\"}) {
    for (const auto option :
         {&SlurmSettings::cluster, &SlurmSettings::account, &SlurmSettings::partition,
          &SlurmSettings::qos, &SlurmSettings::constraint, &SlurmSettings::reservation})
      EXPECT_THROW(with([&](SlurmSettings& r) { r.*option = text; }), Error) << text;
    EXPECT_THROW(with([&](SlurmSettings& r) { r.gpus_per_node = 4, r.gpu_type = text; }), Error)
        << text;
    EXPECT_THROW(with([&](SlurmSettings& r) { r.extra = {text}; }), Error) << text;
  }
  EXPECT_THROW(with([&](SlurmSettings& r) { r.extra = {"--job-name=x"}; }), Error);
  EXPECT_THROW(slurm_options({}, "xffl-a", RemotePath("/a b")), Error);
  EXPECT_THAT(with([&](SlurmSettings& r) {
                r.gpus_per_node = 4;
                r.gpu_type = "a100";
              }),
              Contains("--gpus-per-node=a100:4"));
  EXPECT_THAT(with([&](SlurmSettings& r) { r.memory_per_node = int64_t{64} << 30; }),
              Contains("--mem=65536M"));
}

}  // namespace
}  // namespace xffl::submit
