// A real Slurm: what becomes of jobs and of answers when things go wrong. Each test has a facility
// of its own; the jobs run the shipped template.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <thread>

#include "job_script.h"
#include "support/bed.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/remote/ssh.h"
#include "xffl/round/slurm_settings.h"

namespace xffl::submit {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// A trainer that says what it was given, waits until it is told to end, and stops when it is
// warned.
constexpr const char* kTrainer = R"sh(#!/bin/bash
warned() { echo "rank $SLURM_PROCID warned" >>ranks.txt; [ "$SLURM_PROCID" != 0 ] || echo warned >out/report.json; exit 0; }
trap warned USR1
echo "rank $SLURM_PROCID of $SLURM_NTASKS on $MASTER_ADDR:$MASTER_PORT tag $TAG gpus $CUDA_VISIBLE_DEVICES args $*" >>ranks.txt
echo "start ${SLURM_RESTART_COUNT:-0}" >>out/begun
until [ -e finish ]; do sleep 0.1; done
[ "$SLURM_PROCID" != 0 ] || echo done >out/report.json
)sh";

class SlurmBed : public testing::Test {
 protected:
  void start(const std::vector<std::string>& flavours = {}) {
    bed_ = std::make_unique<test::Bed>(std::vector<std::string>{"alba"}, flavours);
    if (!bed_->up()) return;
    alba_ = &bed_->facility("alba");
    remote::SshSettings ssh;
    ssh.hosts = {{alba_->host, alba_->port}};
    ssh.user = alba_->user;
    ssh.keys = {alba_->key};
    ssh.agent = false;
    ssh.known_hosts = alba_->known_hosts;
    session_ = remote::make_ssh_session(ssh);
    facility_.name = FacilityName("alba");
    facility_.scheduler = config::SchedulerKind::kSlurm;
    facility_.workdir = RemotePath(alba_->scratch);
    facility_.trainer_command = {"bash", alba_->scratch + "/trainer.sh"};
    facility_.environment = {"export TAG='it'\\''s'"};
    facility_.slurm.nodes = 2;
    facility_.slurm.tasks_per_node = facility_.slurm.gpus_per_node = 1;
    facility_.slurm.warning = std::chrono::seconds(60);
    facility_.world_size = 2;
    remote::write_text_atomic(*session_, RemotePath(alba_->scratch + "/trainer.sh"), kTrainer);
    scheduler_ = coordinator();
  }
  std::shared_ptr<Scheduler> coordinator() {
    SlurmSettings settings = round::slurm_settings(facility_.slurm);
    settings.command_timeout = milliseconds(30000);
    return make_slurm_scheduler(settings, session_, clock_);
  }

  JobRequest request(int attempt = 1) {
    job::JobSpec spec;
    spec.key = {"demo", "0001", 1, "alba", attempt, std::string(32, 'a')};
    const RemotePath folder(alba_->scratch + "/a" + std::to_string(attempt));
    session_->make_dirs(folder / "out");
    return {.name = spec.key.job_name(),
            .script = round::job_script(facility_, spec, folder, {"/x/xffl", "/x/xffl-train"}),
            .folder = folder};
  }
  std::string text(const RemotePath& path) {
    return session_->stat(path) ? remote::read_text(*session_, path, 1 << 20) : std::string();
  }
  std::string output(const JobRequest& request) { return text(request.folder / "job.out"); }
  JobStatus status(const JobRequest& request, const JobId& id) {
    const SubmittedJob job{id, request.name};
    return scheduler_->query(std::span(&job, 1), {}).at(id);
  }
  template <class Condition>
  bool await(Condition condition, int seconds = 60) {
    for (int i = 0; i < seconds * 10; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(100));
    }
    return condition();
  }
  bool await_state(const JobRequest& request, const JobId& id, JobState state, int seconds = 60) {
    return await([&] { return status(request, id).state == state; }, seconds);
  }
  bool await_ranks(const JobRequest& request, int count = 2) {
    return await([&] {
      const std::string ranks = text(request.folder / "ranks.txt");
      return std::count(ranks.begin(), ranks.end(), '\n') >= count;
    });
  }
  void finish(const JobRequest& request) {
    remote::write_text_atomic(*session_, request.folder / "finish", "");
  }

  std::unique_ptr<test::Bed> bed_;
  const test::Facility* alba_ = nullptr;
  std::shared_ptr<remote::Session> session_;
  SystemClock clock_;
  config::Facility facility_;
  std::shared_ptr<Scheduler> scheduler_;
};

#define START_BED(...) \
  start(__VA_ARGS__);  \
  if (!bed_->up()) GTEST_SKIP() << bed_->why_not()

TEST_F(SlurmBed, RanksMeetOnTwoNodesAndTheJobEnds) {
  START_BED();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job)) << output(job);
  const std::string ranks = text(job.folder / "ranks.txt");
  for (const char* rank : {"rank 0 of 2 on ", "rank 1 of 2 on ", "tag it's", "args --job "})
    EXPECT_THAT(ranks, HasSubstr(rank));
  EXPECT_THAT(ranks, HasSubstr("gpus 0 "));
  EXPECT_EQ(status(job, id).state, JobState::kRunning);
  EXPECT_GT(status(job, id).ends_in.value(), std::chrono::minutes(50));
  // The job, the nonce, this start's random word and number.
  EXPECT_THAT(text(job.folder / "claim/owner"),
              testing::MatchesRegex(id.str() + " " + std::string(32, 'a') + " [0-9a-f]+ 0\n"));
  finish(job);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded));
  EXPECT_EQ(text(job.folder / "out/report.json"), "done\n");
  EXPECT_THAT(output(job), HasSubstr("the trainer ended with 0"));
}

TEST_F(SlurmBed, TheWarningReachesEveryRank) {
  START_BED();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job)) << output(job);
  // As slurmd does it before the walltime: the batch shell only.
  EXPECT_EQ(alba_->exec_as_user({"scancel", "--batch", "--signal=USR1", id.str()}).exit_code, 0);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded)) << output(job);
  const std::string ranks = text(job.folder / "ranks.txt");
  EXPECT_THAT(ranks, HasSubstr("rank 0 warned"));
  EXPECT_THAT(ranks, HasSubstr("rank 1 warned"));
  EXPECT_EQ(text(job.folder / "out/report.json"), "warned\n");
}

TEST_F(SlurmBed, TheScriptSubmittedByHandIsTheSameJob) {
  START_BED();
  facility_.slurm.time = std::chrono::minutes(7);
  scheduler_ = coordinator();
  const JobRequest by_xffl = request(1), by_hand = request(2);
  const auto properties = [&](const JobId& id) {
    const ProcessResult shown = alba_->exec_as_user({"scontrol", "show", "job", id.str()});
    std::string kept;
    for (const char* key : {"Dependency=", "Requeue=", "NumNodes=", "NumTasks=", "NumCPUs=",
                            "TimeLimit=", "TresPerNode=", "StdErr=", "StdIn=", "Command="}) {
      const size_t begin = shown.out.find(key);
      if (begin != std::string::npos)
        kept += shown.out.substr(begin, shown.out.find_first_of(" \n", begin) - begin) + "\n";
    }
    return kept;
  };
  const JobId ours = scheduler_->submit(by_xffl, {});
  const ProcessResult answer =
      alba_->exec_as_user({"env", "-C", "/tmp", "sbatch", "--parsable"}, by_hand.script);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const std::vector<JobId> found = scheduler_->find(by_hand, {});
  ASSERT_EQ(found.size(), 1u) << answer.out;
  std::string expected = properties(ours);
  for (size_t at = 0; (at = expected.find("/a1/")) != std::string::npos;) expected[at + 2] = '2';
  EXPECT_EQ(properties(found.front()), expected);
  finish(by_xffl);
  finish(by_hand);
  ASSERT_TRUE(await_state(by_hand, found.front(), JobState::kEnded, 120)) << output(by_hand);
  EXPECT_EQ(text(by_hand.folder / "out/report.json"), "done\n");
}

TEST_F(SlurmBed, ATwinWaitsAndThenLeavesTheClaimAlone) {
  START_BED();
  const JobRequest job = request();
  const JobId first = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job));
  const JobId second = scheduler_->submit(job, {});
  EXPECT_EQ(scheduler_->find(job, {}), (std::vector{first, second}));
  EXPECT_EQ(status(job, second).state, JobState::kPending);
  finish(job);
  ASSERT_TRUE(await_state(job, second, JobState::kEnded));
  EXPECT_THAT(output(job), HasSubstr("claimed already by job " + first.str()));
  EXPECT_EQ(text(job.folder / "out/begun"), "start 0\nstart 0\n");  // two ranks, one start
}

TEST_F(SlurmBed, ARequeuedJobStartsAfreshUnderItsOwnClaim) {
  START_BED();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job));
  EXPECT_EQ(alba_->exec_as_user({"scontrol", "requeue", id.str()}).exit_code, 0);
  ASSERT_TRUE(await_state(job, id, JobState::kPending));
  alba_->start_requeued(id.str(), 2);
  ASSERT_TRUE(
      await([&] { return output(job).find("starts again (restart 1)") != std::string::npos; }, 180))
      << output(job) << status(job, id).native << " " << status(job, id).reason;
  ASSERT_TRUE(await_ranks(job, 4));
  EXPECT_EQ(text(job.folder / "out/begun"),
            "start 1\nstart 1\n");  // what the first start wrote is gone
  finish(job);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded));
}

TEST_F(SlurmBed, AFencedAttemptDoesNotStartAgain) {
  START_BED();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job));
  session_->make_dirs(job.folder / "claim/fenced");
  EXPECT_EQ(alba_->exec_as_user({"scontrol", "requeue", id.str()}).exit_code, 0);
  ASSERT_TRUE(await_state(job, id, JobState::kPending));
  alba_->start_requeued(id.str(), 2);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded, 180));
  EXPECT_THAT(output(job), HasSubstr("has given this attempt up"));
  EXPECT_EQ(text(job.folder / "out/begun"), "start 0\nstart 0\n");
}

TEST_F(SlurmBed, AnUnansweredSubmissionIsInDoubtAndFoundAgain) {
  START_BED();
  const JobRequest job = request();
  alba_->signal_daemon("slurmctld", SIGSTOP);
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(12));
    alba_->signal_daemon("slurmctld", SIGCONT);
  });
  try {
    scheduler_->submit(job, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
  }
  std::vector<JobId> found;
  ASSERT_TRUE(await([&] { return !(found = coordinator()->find(job, {})).empty(); }));
  ASSERT_EQ(found.size(), 1u);
  scheduler_->cancel({found.front(), job.name}, {});
}

TEST_F(SlurmBed, AControllerThatIsDownIsBusyForJobsAndSilentForQuestions) {
  START_BED();
  const JobRequest job = request();
  alba_->stop_daemon("slurmctld");
  const auto kind = [](auto action) {
    try {
      action();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  EXPECT_EQ(kind([&] { scheduler_->submit(job, {}); }), ErrorKind::kBusy);
  EXPECT_EQ(kind([&] { status(job, JobId("1")); }), ErrorKind::kRemote);
  EXPECT_EQ(kind([&] { scheduler_->find(job, {}); }), ErrorKind::kRemote);
  alba_->start_daemon("slurmctld");
  std::vector<JobId> found;
  ASSERT_TRUE(await(
      [&] { return kind([&] { found = scheduler_->find(job, {}); }) == ErrorKind::kInternal; }));
  EXPECT_TRUE(found.empty());
}

TEST_F(SlurmBed, RefusalsAreForGoodAndTestOnlySubmitsNothing) {
  START_BED();
  const JobRequest job = request();
  const SlurmSettings settings = round::slurm_settings(facility_.slurm);
  const TestOnly good = test_only(*session_, settings, job, {});
  EXPECT_TRUE(good.accepted) << good.answer;
  EXPECT_THAT(good.answer, HasSubstr("to start at"));
  for (const auto& change : std::vector<std::function<void(SlurmRequest&)>>{
           [](SlurmRequest& r) { r.partition = "nope"; },
           [](SlurmRequest& r) { r.gpus_per_node = 64; },
           [](SlurmRequest& r) { r.constraint = "nofeature"; },
           [](SlurmRequest& r) { r.reservation = "nobodys"; },
           [](SlurmRequest& r) { r.memory_bytes_per_node = 1ull << 50; }}) {
    SlurmSettings wrong = settings;
    change(wrong.request);
    EXPECT_FALSE(test_only(*session_, wrong, job, {}).accepted);
    try {
      make_slurm_scheduler(wrong, session_, clock_)->submit(job, {});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
    }
  }
  EXPECT_TRUE(scheduler_->find(job, {}).empty());
}

TEST_F(SlurmBed, HeldCancelledAndImpossibleJobsAreToldApart) {
  START_BED();
  facility_.slurm.time = std::chrono::hours(99);  // beyond the partition's: accepted, never started
  scheduler_ = coordinator();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_state(job, id, JobState::kHeld)) << status(job, id).reason;
  EXPECT_THAT(status(job, id).reason, HasSubstr("Partition"));
  EXPECT_EQ(alba_->exec_on_login({"scancel", id.str()}).exit_code, 0);
  ASSERT_TRUE(await_state(job, id, JobState::kCancelled));
}

TEST_F(SlurmBed, AForgottenJobIsUnknownWithoutAccounting) {
  START_BED({"--min-job-age", "2"});
  const JobRequest job = request();
  finish(job);
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await([&] { return !text(job.folder / "out/report.json").empty(); }));
  ASSERT_TRUE(await_state(job, id, JobState::kUnknown, 120));
  EXPECT_TRUE(scheduler_->find(job, {}).empty());
  scheduler_->cancel({id, job.name}, {});
}

TEST_F(SlurmBed, AForgottenJobIsKnownToTheAccounting) {
  START_BED({"--min-job-age", "2", "--dbd"});
  const JobRequest job = request();
  finish(job);
  const JobId id = scheduler_->submit(job, {});
  const auto forgotten = [&] {
    const ProcessResult queue =
        alba_->exec_as_user({"squeue", "--me", "--noheader", "--states=all"});
    return queue.exit_code == 0 && queue.out.empty();
  };
  ASSERT_TRUE(
      await([&] { return !text(job.folder / "out/report.json").empty() && forgotten(); }, 120));
  EXPECT_EQ(status(job, id).state, JobState::kEnded);
  EXPECT_EQ(status(job, id).native, "COMPLETED");
  EXPECT_EQ(scheduler_->find(job, {}), std::vector{id});
}

// The accounting is all that is left to ask when the controller has forgotten the job, and may be
// silent for a while. What a kernel that killed for memory leaves there is written by hand: without
// cgroups Slurm says FAILED, even with OverMemoryKill.
TEST_F(SlurmBed, ASilentAccountingAndAnEndForLackOfMemory) {
  START_BED({"--min-job-age", "2", "--dbd"});
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  finish(job);
  const auto forgotten = [&] {
    const ProcessResult queue =
        alba_->exec_as_user({"squeue", "--me", "--noheader", "--states=all"});
    return queue.exit_code == 0 && queue.out.empty();
  };
  ASSERT_TRUE(await(forgotten, 120));
  const auto known_as = [&]() -> std::string {
    try {
      const JobStatus found = status(job, id);
      return found.state == JobState::kEnded ? found.native : "";
    } catch (const Error& error) {  // an accounting that does not answer is no answer
      EXPECT_THAT(error.kind(), testing::AnyOf(ErrorKind::kRemote, ErrorKind::kBusy))
          << error.what();
      return "";
    }
  };
  ASSERT_TRUE(await([&] { return known_as() == "COMPLETED"; }, 60));
  alba_->stop_daemon("slurmdbd");
  EXPECT_EQ(known_as(), "") << "nobody can say how it ended";
  alba_->start_daemon("slurmdbd");
  scheduler_ = coordinator();  // that one leaves the accounting alone for a while
  ASSERT_TRUE(await([&] { return known_as() == "COMPLETED"; }, 60));

  constexpr const char* kOutOfMemory = "11";  // JOB_OOM of slurm.h
  const ProcessResult written =
      alba_->exec_on_login({"mariadb", "-S", "/run/mysqld/mysqld.sock", "-e",
                            std::string("update slurm_acct.alba_job_table set state=") +
                                kOutOfMemory + " where id_job=" + id.str()});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  const JobStatus ended = status(job, id);
  EXPECT_EQ(ended.state, JobState::kEnded);
  EXPECT_EQ(ended.cause, EndCause::kOutOfMemory);
  EXPECT_EQ(ended.native, "OUT_OF_MEMORY");
}

TEST_F(SlurmBed, AJobWhoseNodeDiesStartsAgainElsewhere) {
  START_BED({"--slurm", "SlurmdTimeout=5"});
  facility_.slurm.nodes = facility_.world_size = 1;
  scheduler_ = coordinator();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job, 1)) << output(job);
  const ProcessResult where =
      alba_->exec_as_user({"squeue", "--noheader", "--job=" + id.str(), "--format=%N"});
  alba_->node_down(where.out.find("alba1") != std::string::npos ? 1 : 2);
  const auto again = [&] { return output(job).find("starts again (restart 1)"); };
  ASSERT_TRUE(await(
      [&] {
        alba_->exec_on_login({"scontrol", "update", "JobId=" + id.str(), "StartTime=now"});
        return again() != std::string::npos;
      },
      180))
      << output(job) << status(job, id).native << " " << status(job, id).reason;
  ASSERT_TRUE(await_ranks(job, 2));
  finish(job);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded));
  EXPECT_EQ(text(job.folder / "out/report.json"), "done\n");
}

TEST_F(SlurmBed, TheWalltimesWarningComesInTimeToReport) {
  START_BED();
  facility_.slurm.time = std::chrono::seconds(120);
  scheduler_ = coordinator();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job));
  ASSERT_TRUE(await_state(job, id, JobState::kEnded, 200)) << output(job);
  EXPECT_EQ(text(job.folder / "out/report.json"), "warned\n");
}

TEST_F(SlurmBed, AJobThatDoesNotHeedTheWarningEndsByWalltime) {
  START_BED();
  facility_.slurm.time = std::chrono::seconds(60);
  facility_.slurm.warning = std::chrono::seconds(0);
  scheduler_ = coordinator();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_state(job, id, JobState::kEnded, 200)) << output(job);
  EXPECT_EQ(status(job, id).cause, EndCause::kWalltime) << status(job, id).native;
  EXPECT_TRUE(text(job.folder / "out/report.json").empty());
}

}  // namespace
}  // namespace xffl::submit
