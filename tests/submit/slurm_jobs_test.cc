// The Slurm scheduler with a real Slurm: states, rejections, preemption, node failure, walltime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "support/slurm_testbed.h"
#include "xffl/base/error.h"

namespace xffl::submit {
namespace {

using std::chrono::seconds;
using test::SlurmTestbed;
using testing::ElementsAre;
using testing::HasSubstr;

#define NEED(testbed) \
  if (!(testbed).up()) GTEST_SKIP() << (testbed).why_not()

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
  SlurmTestbed testbed;
  NEED(testbed);
  testbed.settings.exclusive = true;
  testbed.settings.nodes = 2;
  const auto scheduler = testbed.scheduler();
  const JobRequest first = testbed.request("first", "until [ -e finish ]; do sleep 0.1; done");
  const JobRequest second = testbed.request("second");
  const JobId running = scheduler->submit(first, {});
  const JobStatus status = testbed.await(*scheduler, running, first, JobState::kRunning);
  ASSERT_EQ(status.state, JobState::kRunning) << status.native;
  ASSERT_TRUE(status.ends_in);
  EXPECT_GT(*status.ends_in, seconds(200));
  EXPECT_LE(*status.ends_in, seconds(300));
  const JobId waiting = scheduler->submit(second, {});
  const JobStatus queued = testbed.status(*scheduler, waiting, second);
  EXPECT_EQ(queued.state, JobState::kPending) << queued.native;
  bool predicted = false;  // by the backfill scheduler, every 5 s
  test::await(
      [&] { return predicted = testbed.status(*scheduler, waiting, second).starts_in.has_value(); },
      seconds(15));
  ASSERT_TRUE(predicted);
  EXPECT_LE(*testbed.status(*scheduler, waiting, second).starts_in, seconds(300));
  testbed.touch(first, "finish");
  EXPECT_EQ(testbed.await(*scheduler, waiting, second, JobState::kEnded).state, JobState::kEnded);
}

TEST(Slurm, RejectsInvalidRequestsAndDefersAtSubmitLimits) {
  SlurmTestbed testbed({"--dbd", "--min-job-age", "2"});
  NEED(testbed);
  const JobRequest job = testbed.request("refused");
  const auto refused = [&](const std::function<void(SlurmSettings&)>& change) {
    const SlurmSettings before = testbed.settings;
    change(testbed.settings);
    const Rejection rejection = rejection_of([&] { testbed.scheduler()->submit(job, {}); });
    testbed.settings = before;
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
  for (const JobId& id : testbed.scheduler()->find(job, {}))
    EXPECT_EQ(testbed.status(*testbed.scheduler(), id, job).state, JobState::kEnded);
  EXPECT_FALSE(testbed.exists(job, "starts"));

  // A submit limit passes by itself; the accounting knows jobs that the controller forgot.
  testbed.settings.qos = "single";
  const auto scheduler = testbed.scheduler();
  const JobRequest first = testbed.request("first", "sleep 3"), second = testbed.request("second");
  const JobId id = scheduler->submit(first, {});
  const Rejection rejection = rejection_of([&] { scheduler->submit(second, {}); });
  EXPECT_EQ(rejection.kind, ErrorKind::kBusy) << rejection.text;
  EXPECT_EQ(testbed.await(*scheduler, id, first, JobState::kEnded).state, JobState::kEnded);
  EXPECT_TRUE(test::await(
      [&] {
        return testbed.admin({"squeue", "-h", "-t", "all"}).empty();
      },
      seconds(90)));
  EXPECT_EQ(testbed.await(*scheduler, id, first, JobState::kEnded).state, JobState::kEnded);
  EXPECT_THAT(scheduler->find(first, {}), ElementsAre(id));
  EXPECT_NO_THROW(scheduler->submit(second, {}));
}

TEST(Slurm, APreemptedJobIsPendingAgain) {
  SlurmTestbed testbed;
  NEED(testbed);
  testbed.settings.nodes = 2;
  testbed.settings.exclusive = true;
  testbed.settings.partition = "low";
  const auto scheduler = testbed.scheduler();
  const JobRequest low = testbed.request("low", "sleep 60"),
                   urgent = testbed.request("urgent", "sleep 3");
  const JobId id = scheduler->submit(low, {});
  testbed.await(*scheduler, id, low, JobState::kRunning);
  testbed.settings.partition = "urgent";
  testbed.scheduler()->submit(urgent, {});
  const JobStatus status = testbed.await(*scheduler, id, low, JobState::kPending);
  EXPECT_EQ(status.state, JobState::kPending) << status.native;
  EXPECT_TRUE(test::await([&] { return testbed.exists(urgent, "trainings"); }));
}

// Slurm requeues the job of a failed node, or ends the job if requeueing is off.
TEST(Slurm, ANodeFailureRequeuesTheJobOrEndsItAsInfrastructure) {
  SlurmTestbed testbed({"--slurm", "SlurmdTimeout=5"});
  NEED(testbed);
  testbed.settings.extra = {"--nodelist=alba2"};
  const auto scheduler = testbed.scheduler();
  const JobRequest requeued = testbed.request("requeued", "[ $SLURM_RESTART_COUNT ] || sleep 300");
  const JobRequest ended = testbed.request("ended", "sleep 300");
  const JobId a = scheduler->submit(requeued, {});
  const JobId b = scheduler->submit(ended, {});
  testbed.admin({"scontrol", "update", "JobId=" + b.str(), "Requeue=0"});
  ASSERT_TRUE(testbed.await_start(requeued));
  ASSERT_TRUE(testbed.await_start(ended));
  testbed.facility().node_down(2);
  const JobStatus status = testbed.await(*scheduler, b, ended, JobState::kEnded, seconds(90));
  EXPECT_EQ(status.state, JobState::kEnded) << status.native;
  EXPECT_EQ(status.cause, EndCause::kInfrastructure) << status.native;
  EXPECT_EQ(testbed.status(*scheduler, a, requeued).state, JobState::kPending);
  testbed.facility().node_up(2);
  EXPECT_EQ(testbed.await(*scheduler, a, requeued, JobState::kEnded).state, JobState::kEnded);
  EXPECT_EQ(testbed.lines(requeued, "starts"), (std::vector<std::string>{a.str(), a.str()}));
  EXPECT_EQ(testbed.lines(requeued, "trainings").size(), 1u);
}

// The warning comes before the limit, the limit within half a minute after it.
TEST(Slurm, TheWarningPrecedesTheEndByWalltime) {
  SlurmTestbed testbed;
  NEED(testbed);
  testbed.settings.time = seconds(60);
  testbed.settings.warning = seconds(50);
  const auto scheduler = testbed.scheduler();
  const JobRequest job = testbed.request(
      "long", "trap 'date +%s >warned' USR1; sleep 200 & wait $!; sleep 200 & wait $!");
  const JobId id = scheduler->submit(job, {});
  EXPECT_TRUE(test::await([&] { return testbed.exists(job, "warned"); }, seconds(60)));
  const JobStatus status = testbed.await(*scheduler, id, job, JobState::kEnded, seconds(100));
  EXPECT_EQ(status.state, JobState::kEnded) << status.native;
  EXPECT_EQ(status.cause, EndCause::kWalltime) << status.native;
}

}  // namespace
}  // namespace xffl::submit
