// A real Slurm: the ends of jobs, and the records of squeue and sacct after them.
#include "slurm_testbed.h"
#include "xffl/base/error.h"

namespace xffl::submit {
namespace {

TEST_F(SlurmTestbed, AJobThatSqueueForgotIsUnknownWithoutAccounting) {
  START_TESTBED({"--min-job-age", "2"});
  const JobRequest job = request();
  finish(job);
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await([&] { return !text(job.folder / "out/report.json").empty(); }));
  ASSERT_TRUE(await_state(job, id, JobState::kUnknown, 120));
  EXPECT_TRUE(scheduler_->find(job, {}).empty());
  scheduler_->cancel({id, job.name}, {});
}

TEST_F(SlurmTestbed, AJobThatSqueueForgotIsFoundInTheAccounting) {
  START_TESTBED({"--min-job-age", "2", "--dbd"});
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

// Only the accounting knows a job that the controller has forgotten, and slurmdbd may be down. The
// test writes the state OUT_OF_MEMORY into the database: without cgroups Slurm records FAILED, even
// with OverMemoryKill.
TEST_F(SlurmTestbed, ReadsTheAccountingAfterAnOutageAndReportsOutOfMemory) {
  START_TESTBED({"--min-job-age", "2", "--dbd"});
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
    } catch (const Error& error) {  // slurmdbd does not answer
      EXPECT_THAT(error.kind(), testing::AnyOf(ErrorKind::kRemote, ErrorKind::kBusy))
          << error.what();
      return "";
    }
  };
  ASSERT_TRUE(await([&] { return known_as() == "COMPLETED"; }, 60));
  alba_->stop_daemon("slurmdbd");
  EXPECT_EQ(known_as(), "") << "the job's end cannot be known";
  alba_->start_daemon("slurmdbd");
  scheduler_ = coordinator();  // the old coordinator pauses its sacct queries
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

TEST_F(SlurmTestbed, AJobWhoseNodeFailsIsRequeuedToAnotherNode) {
  START_TESTBED({"--slurm", "SlurmdTimeout=5"});
  slurm().nodes = facility_.world_size = 1;
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

TEST_F(SlurmTestbed, TheWarningBeforeTheWalltimeLeavesTimeToReport) {
  START_TESTBED();
  slurm().time = std::chrono::seconds(120);
  scheduler_ = coordinator();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_ranks(job));
  ASSERT_TRUE(await_state(job, id, JobState::kEnded, 200)) << output(job);
  EXPECT_EQ(text(job.folder / "out/report.json"), "warned\n");
}

TEST_F(SlurmTestbed, AJobThatIgnoresTheWarningEndsByWalltime) {
  START_TESTBED();
  slurm().time = std::chrono::seconds(60);
  slurm().warning = std::chrono::seconds(0);
  scheduler_ = coordinator();
  const JobRequest job = request();
  const JobId id = scheduler_->submit(job, {});
  ASSERT_TRUE(await_state(job, id, JobState::kEnded, 200)) << output(job);
  EXPECT_EQ(status(job, id).cause, EndCause::kWalltime) << status(job, id).native;
  EXPECT_TRUE(text(job.folder / "out/report.json").empty());
}

}  // namespace
}  // namespace xffl::submit
