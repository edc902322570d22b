// The Slurm scheduler while Slurm's daemons stop, die and lose their state. No coordinator runs:
// its retries and searches by name would hide the scheduler's answers. tests/e2e tests the
// coordinator under the same faults (testbed_frozen_controller_test.cc, testbed_outages_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/slurm_testbed.h"
#include "xffl/base/error.h"

namespace xffl::submit {
namespace {

using std::chrono::seconds;
using test::SlurmTestbed;
using testing::SizeIs;

#define NEED(testbed) \
  if (!(testbed).up()) GTEST_SKIP() << (testbed).why_not()

std::optional<ErrorKind> kind_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

TEST(SlurmFaults, NoJobIsLostWhileTheControllerIsDown) {
  SlurmTestbed testbed({"--slurm", "MessageTimeout=2"});
  NEED(testbed);
  const auto scheduler = testbed.scheduler();
  const JobRequest job = testbed.request("job", "until [ -e finish ]; do sleep 0.1; done");
  const JobId id = scheduler->submit(job, {});
  ASSERT_EQ(testbed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  testbed.facility().stop_daemon("slurmctld", "TERM");
  EXPECT_EQ(kind_of([&] { testbed.status(*scheduler, id, job); }), ErrorKind::kRemote);
  EXPECT_EQ(kind_of([&] { scheduler->find(job, {}); }), ErrorKind::kRemote);
  const auto refused = kind_of([&] { scheduler->submit(testbed.request("later"), {}); });
  EXPECT_TRUE(refused == ErrorKind::kBusy || refused == ErrorKind::kRemote);
  EXPECT_EQ(kind_of([&] { scheduler->cancel({id, job.name}, {}); }), ErrorKind::kRemote);
  testbed.facility().start_daemon("slurmctld");
  ASSERT_TRUE(
      test::await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }, seconds(20)));
  EXPECT_EQ(testbed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  testbed.touch(job, "finish");
  EXPECT_EQ(testbed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  EXPECT_THAT(testbed.lines(job, "trainings"), SizeIs(1));
}

TEST(SlurmFaults, QueriesFailWhileMungeIsDown) {
  SlurmTestbed testbed;
  NEED(testbed);
  const auto scheduler = testbed.scheduler();
  const JobRequest job = testbed.request("job", "until [ -e finish ]; do sleep 0.1; done");
  const JobId id = scheduler->submit(job, {});
  ASSERT_EQ(testbed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  testbed.facility().stop_daemon("munged");
  EXPECT_EQ(kind_of([&] { testbed.status(*scheduler, id, job); }), ErrorKind::kRemote);
  const auto refused = kind_of([&] { scheduler->submit(testbed.request("later"), {}); });
  EXPECT_TRUE(refused == ErrorKind::kBusy || refused == ErrorKind::kRemote);
  testbed.facility().start_daemon("munged");
  testbed.touch(job, "finish");
  EXPECT_EQ(testbed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  EXPECT_THAT(testbed.lines(job, "trainings"), SizeIs(1));
}

// A controller that lost its state reuses job ids.
TEST(SlurmFaults, AReusedIdIsUnknownAndNotCancelled) {
  SlurmTestbed testbed;
  NEED(testbed);
  const auto scheduler = testbed.scheduler();
  const JobRequest job = testbed.request("job"), other = testbed.request("other", "sleep 60");
  const JobId id = scheduler->submit(job, {});
  EXPECT_EQ(testbed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  testbed.facility().stop_daemon("slurmctld", "KILL");
  testbed.admin({"find", "/var/spool/slurmctld", "-type", "f", "-delete"});
  testbed.facility().start_daemon("slurmctld");
  ASSERT_TRUE(
      test::await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }, seconds(20)));
  ASSERT_EQ(scheduler->submit(other, {}), id) << "the controller did not lose its state";
  EXPECT_EQ(testbed.status(*scheduler, id, job).state, JobState::kUnknown);
  EXPECT_TRUE(scheduler->find(job, {}).empty());
  // A cancellation by the old name leaves the new job alone.
  ASSERT_EQ(testbed.await(*scheduler, id, other, JobState::kRunning).state, JobState::kRunning);
  scheduler->cancel({id, job.name}, {});
  EXPECT_EQ(testbed.status(*scheduler, id, other).state, JobState::kRunning);
  scheduler->cancel({id, other.name}, {});
  EXPECT_EQ(testbed.await(*scheduler, id, other, JobState::kCancelled).state, JobState::kCancelled);
}

}  // namespace
}  // namespace xffl::submit
