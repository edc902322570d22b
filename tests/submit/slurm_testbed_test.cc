// A real Slurm: jobs that start, wait, are queried and submitted again.
#include "slurm_testbed.h"

#include "xffl/base/error.h"

namespace xffl::submit {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(SlurmTestbed, RanksOfTwoNodesRunAndTheJobEnds) {
  START_TESTBED();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job)) << output(job);
  const std::string ranks = text(job.folder / "ranks.txt");
  for (const char* rank : {"rank 0 of 2 on ", "rank 1 of 2 on ", "tag it's", "args --job "})
    EXPECT_THAT(ranks, HasSubstr(rank));
  EXPECT_THAT(ranks, HasSubstr("gpus 0 "));
  EXPECT_EQ(status(job, id).state, JobState::kRunning);
  EXPECT_GT(status(job, id).ends_in.value(), std::chrono::minutes(50));
  // The job id, the nonce, the start id and the restart count.
  EXPECT_THAT(text(job.folder / "claim/owner"),
              testing::MatchesRegex(id.str() + " " + std::string(32, 'a') + " [0-9a-f]+ 0\n"));
  finish(job);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded));
  EXPECT_EQ(text(job.folder / "out/report.json"), "done\n");
  EXPECT_THAT(output(job), HasSubstr("the trainer ended with 0"));
}

TEST_F(SlurmTestbed, TheWarningSignalReachesEveryRank) {
  START_TESTBED();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job)) << output(job);
  // Like slurmd before the walltime: only the batch shell gets the signal.
  EXPECT_EQ(alba_->exec_as_user({"scancel", "--batch", "--signal=USR1", id.str()}).exit_code, 0);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded)) << output(job);
  const std::string ranks = text(job.folder / "ranks.txt");
  EXPECT_THAT(ranks, HasSubstr("rank 0 warned"));
  EXPECT_THAT(ranks, HasSubstr("rank 1 warned"));
  EXPECT_EQ(text(job.folder / "out/report.json"), "warned\n");
}

TEST_F(SlurmTestbed, RanksOfANodeSeeOneGpuOrAll) {
  START_TESTBED();
  slurm().nodes = 1;
  slurm().tasks_per_node = slurm().gpus_per_node = facility_.world_size = 2;
  const auto seen = [&](VisibleGpus visible, int attempt) {
    slurm().visible_gpus = visible;
    scheduler_ = coordinator();
    const JobRequest job = request(attempt);
    const JobId id = scheduler_->submit(job, {});
    EXPECT_TRUE(await_ranks(job)) << output(job);
    const std::string ranks = text(job.folder / "ranks.txt");
    finish(job);
    EXPECT_TRUE(await_state(job, id, JobState::kEnded));
    return ranks;
  };
  const std::string one = seen(VisibleGpus::kOne, 1);
  EXPECT_THAT(one, HasSubstr("gpus 0 args"));
  EXPECT_THAT(one, HasSubstr("gpus 1 args"));
  EXPECT_THAT(seen(VisibleGpus::kSite, 2), HasSubstr("gpus 0,1 args"));
  // A site that binds; unbound, the variable is unset and the cgroup decides.
  slurm().srun = {"--gpus-per-task=1"};
  EXPECT_THAT(seen(VisibleGpus::kSite, 3), Not(HasSubstr("gpus 0,1 args")));
  EXPECT_THAT(seen(VisibleGpus::kAll, 4), HasSubstr("gpus  args"));
}

// The account's profile alone defines `module`, and prints and reads, too.
TEST_F(SlurmTestbed, ALoginShellSubmitsAndLoadsModules) {
  START_TESTBED();
  facility_.environment = {};
  facility_.modules = {"cuda/12.2"};
  const ProcessResult written = alba_->exec_as_user(
      {"sh", "-c", "cat >~/.bash_profile"},
      "echo '*** Welcome ***'\nread -r line\nmodule() { export TAG=\"module $2\"; }\n");
  ASSERT_EQ(written.exit_code, 0) << written.err;
  const JobRequest without = request(1);
  const JobId plain = scheduler_->submit(without, {});
  ASSERT_TRUE(await_state(without, plain, JobState::kEnded));
  EXPECT_THAT(output(without), HasSubstr("cannot load the module cuda/12.2"));
  facility_.login_shell = true;
  session_ = facility::queue_session(facility_, session_);
  scheduler_ = coordinator();
  const JobRequest job = request(2);
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job)) << output(job);
  EXPECT_THAT(text(job.folder / "ranks.txt"), HasSubstr("tag module cuda/12.2"));
  EXPECT_EQ(scheduler_->find(job, {}), std::vector<JobId>{id});
  finish(job);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded));
}

TEST_F(SlurmTestbed, AScriptSubmittedByHandIsTheSameJob) {
  START_TESTBED();
  slurm().time = std::chrono::minutes(7);
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

TEST_F(SlurmTestbed, ADuplicateJobWaitsAndThenTrainsNothing) {
  START_TESTBED();
  const JobRequest job = request();
  const JobId first = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job));
  const JobId second = scheduler_->submit(job, {});
  EXPECT_EQ(scheduler_->find(job, {}), (std::vector{first, second}));
  EXPECT_EQ(status(job, second).state, JobState::kPending);
  finish(job);
  ASSERT_TRUE(await_state(job, second, JobState::kEnded));
  EXPECT_THAT(output(job), HasSubstr("already claimed by job " + first.str()));
  EXPECT_EQ(text(job.folder / "out/begun"), "start 0\nstart 0\n");  // two ranks, one start
}

TEST_F(SlurmTestbed, ARequeuedJobRestartsUnderItsOwnClaim) {
  START_TESTBED();
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
            "start 1\nstart 1\n");  // the first start's output is removed
  finish(job);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded));
}

TEST_F(SlurmTestbed, AFencedAttemptDoesNotRestart) {
  START_TESTBED();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job));
  session_->make_dirs(job.folder / "claim/fenced");
  EXPECT_EQ(alba_->exec_as_user({"scontrol", "requeue", id.str()}).exit_code, 0);
  ASSERT_TRUE(await_state(job, id, JobState::kPending));
  alba_->start_requeued(id.str(), 2);
  ASSERT_TRUE(await_state(job, id, JobState::kEnded, 180));
  EXPECT_THAT(output(job), HasSubstr("has abandoned this attempt"));
  EXPECT_EQ(text(job.folder / "out/begun"), "start 0\nstart 0\n");
}

TEST_F(SlurmTestbed, FindsTheJobOfAnUnansweredSubmission) {
  START_TESTBED();
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

TEST_F(SlurmTestbed, SubmitIsDeferredAndQueriesFailWhileTheControllerIsDown) {
  START_TESTBED();
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

TEST_F(SlurmTestbed, InvalidRequestsAreRejectedAndTestOnlySubmitsNothing) {
  START_TESTBED();
  const JobRequest job = request();
  const SlurmSettings settings = slurm();
  const TestOnly good = test_only(*session_, settings, job, {});
  EXPECT_TRUE(good.accepted) << good.answer;
  EXPECT_THAT(good.answer, HasSubstr("to start at"));
  for (const auto& change : std::vector<std::function<void(SlurmSettings&)>>{
           [](SlurmSettings& r) { r.partition = "nope"; },
           [](SlurmSettings& r) { r.gpus_per_node = 64; },
           [](SlurmSettings& r) { r.constraint = "nofeature"; },
           [](SlurmSettings& r) { r.reservation = "nobodys"; },
           [](SlurmSettings& r) { r.memory_per_node = int64_t{1} << 50; }}) {
    SlurmSettings wrong = settings;
    change(wrong);
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

TEST_F(SlurmTestbed, DistinguishesHeldAndCancelledJobs) {
  START_TESTBED();
  slurm().time = std::chrono::hours(99);  // beyond the partition's limit: accepted, never started
  scheduler_ = coordinator();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_state(job, id, JobState::kHeld)) << status(job, id).reason;
  EXPECT_THAT(status(job, id).reason, HasSubstr("Partition"));
  EXPECT_EQ(alba_->exec_on_login({"scancel", id.str()}).exit_code, 0);
  ASSERT_TRUE(await_state(job, id, JobState::kCancelled));
}

}  // namespace
}  // namespace xffl::submit
