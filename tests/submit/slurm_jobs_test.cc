// The Slurm scheduler with a real Slurm: states, rejections, preemption, node failure, walltime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "support/slurm_bed.h"
#include "xffl/base/error.h"

namespace xffl::submit {
namespace {

using std::chrono::seconds;
using test::SlurmBed;
using testing::ElementsAre;
using testing::HasSubstr;

#define NEED(bed) \
  if (!(bed).up()) GTEST_SKIP() << (bed).why_not()

struct Rejection {
  ErrorKind kind = ErrorKind::kInternal;
  std::string text;
};
Rejection rejection_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Slurm, ReportsPredictedStartAndRemainingTime) {
  SlurmBed bed;
  NEED(bed);
  bed.settings.exclusive = true;
  bed.settings.nodes = 2;
  const auto scheduler = bed.scheduler();
  const JobRequest first = bed.request("first", "until [ -e finish ]; do sleep 0.1; done");
  const JobRequest second = bed.request("second");
  const JobId running = scheduler->submit(first, {});
  const JobStatus status = bed.await(*scheduler, running, first, JobState::kRunning);
  ASSERT_EQ(status.state, JobState::kRunning) << status.native;
  ASSERT_TRUE(status.ends_in);
  EXPECT_GT(*status.ends_in, seconds(200));
  EXPECT_LE(*status.ends_in, seconds(300));
  const JobId waiting = scheduler->submit(second, {});
  const JobStatus queued = bed.status(*scheduler, waiting, second);
  EXPECT_EQ(queued.state, JobState::kPending) << queued.native;
  bool predicted = false;  // by the backfill scheduler, every 5 s
  bed.await(
      [&] { return predicted = bed.status(*scheduler, waiting, second).starts_in.has_value(); },
      seconds(15));
  ASSERT_TRUE(predicted);
  EXPECT_LE(*bed.status(*scheduler, waiting, second).starts_in, seconds(300));
  bed.touch(first, "finish");
  EXPECT_EQ(bed.await(*scheduler, waiting, second, JobState::kEnded).state, JobState::kEnded);
}

TEST(Slurm, RejectsInvalidRequestsAndDefersAtSubmitLimits) {
  SlurmBed bed({"--dbd", "--min-job-age", "2"});
  NEED(bed);
  const JobRequest job = bed.request("refused");
  const auto refused = [&](const std::function<void(SlurmSettings&)>& change) {
    const SlurmSettings before = bed.settings;
    change(bed.settings);
    const Rejection rejection = rejection_of([&] { bed.scheduler()->submit(job, {}); });
    bed.settings = before;
    EXPECT_EQ(rejection.kind, ErrorKind::kConfig) << rejection.text;
    return rejection.text;
  };
  EXPECT_THAT(refused([](auto& r) { r.partition = "nope"; }), HasSubstr("invalid partition"));
  EXPECT_THAT(refused([](auto& r) { r.account = "nope"; }), HasSubstr("Invalid account"));
  EXPECT_THAT(refused([](auto& r) { r.qos = "nope"; }), HasSubstr("Invalid qos"));
  EXPECT_THAT(refused([](auto& r) { r.gpus_per_node = 50; }), HasSubstr("not available"));
  EXPECT_THAT(refused([](auto& r) { r.constraint = "cray"; }), HasSubstr("Invalid feature"));
  EXPECT_THAT(refused([](auto& r) { r.reservation = "nope"; }), HasSubstr("reservation"));
  // Slurm lists some rejected submissions as failed jobs that never started.
  for (const JobId& id : bed.scheduler()->find(job, {}))
    EXPECT_EQ(bed.status(*bed.scheduler(), id, job).state, JobState::kEnded);
  EXPECT_FALSE(bed.exists(job, "starts"));

  // A submit limit passes by itself; the accounting knows jobs that the controller forgot.
  bed.settings.qos = "single";
  const auto scheduler = bed.scheduler();
  const JobRequest first = bed.request("first", "sleep 3"), second = bed.request("second");
  const JobId id = scheduler->submit(first, {});
  const Rejection rejection = rejection_of([&] { scheduler->submit(second, {}); });
  EXPECT_EQ(rejection.kind, ErrorKind::kBusy) << rejection.text;
  EXPECT_EQ(bed.await(*scheduler, id, first, JobState::kEnded).state, JobState::kEnded);
  EXPECT_TRUE(bed.await(
      [&] {
        return bed.admin({"squeue", "-h", "-t", "all"}).empty();
      },
      seconds(90)));
  EXPECT_EQ(bed.await(*scheduler, id, first, JobState::kEnded).state, JobState::kEnded);
  EXPECT_THAT(scheduler->find(first, {}), ElementsAre(id));
  EXPECT_NO_THROW(scheduler->submit(second, {}));
}

TEST(Slurm, APreemptedJobIsPendingAgain) {
  SlurmBed bed;
  NEED(bed);
  bed.settings.nodes = 2;
  bed.settings.exclusive = true;
  bed.settings.partition = "low";
  const auto scheduler = bed.scheduler();
  const JobRequest low = bed.request("low", "sleep 60"), urgent = bed.request("urgent", "sleep 3");
  const JobId id = scheduler->submit(low, {});
  bed.await(*scheduler, id, low, JobState::kRunning);
  bed.settings.partition = "urgent";
  bed.scheduler()->submit(urgent, {});
  const JobStatus status = bed.await(*scheduler, id, low, JobState::kPending);
  EXPECT_EQ(status.state, JobState::kPending) << status.native;
  EXPECT_TRUE(bed.await([&] { return bed.exists(urgent, "trainings"); }));
}

// Slurm requeues the job of a failed node, or ends the job if requeueing is off.
TEST(Slurm, ANodeFailureRequeuesTheJobOrEndsItAsInfrastructure) {
  SlurmBed bed({"--slurm", "SlurmdTimeout=5"});
  NEED(bed);
  bed.settings.extra = {"--nodelist=alba2"};
  const auto scheduler = bed.scheduler();
  const JobRequest requeued = bed.request("requeued", "[ $SLURM_RESTART_COUNT ] || sleep 300");
  const JobRequest ended = bed.request("ended", "sleep 300");
  const JobId a = scheduler->submit(requeued, {});
  const JobId b = scheduler->submit(ended, {});
  bed.admin({"scontrol", "update", "JobId=" + b.str(), "Requeue=0"});
  ASSERT_TRUE(bed.await_start(requeued));
  ASSERT_TRUE(bed.await_start(ended));
  bed.facility().node_down(2);
  const JobStatus status = bed.await(*scheduler, b, ended, JobState::kEnded, seconds(90));
  EXPECT_EQ(status.state, JobState::kEnded) << status.native;
  EXPECT_EQ(status.cause, EndCause::kInfrastructure) << status.native;
  EXPECT_EQ(bed.status(*scheduler, a, requeued).state, JobState::kPending);
  bed.facility().node_up(2);
  EXPECT_EQ(bed.await(*scheduler, a, requeued, JobState::kEnded).state, JobState::kEnded);
  EXPECT_EQ(bed.lines(requeued, "starts"), (std::vector<std::string>{a.str(), a.str()}));
  EXPECT_EQ(bed.lines(requeued, "trainings").size(), 1u);
}

// The warning comes before the limit, the limit within half a minute after it.
TEST(Slurm, TheWarningPrecedesTheEndByWalltime) {
  SlurmBed bed;
  NEED(bed);
  bed.settings.time = seconds(60);
  bed.settings.warning = seconds(50);
  const auto scheduler = bed.scheduler();
  const JobRequest job =
      bed.request("long", "trap 'date +%s >warned' USR1; sleep 200 & wait $!; sleep 200 & wait $!");
  const JobId id = scheduler->submit(job, {});
  EXPECT_TRUE(bed.await([&] { return bed.exists(job, "warned"); }, seconds(60)));
  const JobStatus status = bed.await(*scheduler, id, job, JobState::kEnded, seconds(100));
  EXPECT_EQ(status.state, JobState::kEnded) << status.native;
  EXPECT_EQ(status.cause, EndCause::kWalltime) << status.native;
}

}  // namespace
}  // namespace xffl::submit
