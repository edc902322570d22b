// The Slurm scheduler while Slurm's daemons stop, die and lose their state. No coordinator runs:
// its retries and searches by name would hide the scheduler's answers. tests/e2e tests the
// coordinator under the same faults (bed_frozen_test.cc, bed_outages_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/slurm_bed.h"
#include "xffl/base/error.h"

namespace xffl::submit {
namespace {

using std::chrono::seconds;
using test::SlurmBed;
using testing::SizeIs;

#define NEED(bed) \
  if (!(bed).up()) GTEST_SKIP() << (bed).why_not()

std::optional<ErrorKind> kind_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

TEST(SlurmFaults, NoJobIsLostWhileTheControllerIsDown) {
  SlurmBed bed({"--slurm", "MessageTimeout=2"});
  NEED(bed);
  const auto scheduler = bed.scheduler();
  const JobRequest job = bed.request("job", "until [ -e finish ]; do sleep 0.1; done");
  const JobId id = scheduler->submit(job, {});
  ASSERT_EQ(bed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  bed.facility().stop_daemon("slurmctld", "TERM");
  EXPECT_EQ(kind_of([&] { bed.status(*scheduler, id, job); }), ErrorKind::kRemote);
  EXPECT_EQ(kind_of([&] { scheduler->find(job, {}); }), ErrorKind::kRemote);
  const auto refused = kind_of([&] { scheduler->submit(bed.request("later"), {}); });
  EXPECT_TRUE(refused == ErrorKind::kBusy || refused == ErrorKind::kRemote);
  EXPECT_EQ(kind_of([&] { scheduler->cancel({id, job.name}, {}); }), ErrorKind::kRemote);
  bed.facility().start_daemon("slurmctld");
  ASSERT_TRUE(bed.await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }, seconds(20)));
  EXPECT_EQ(bed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  bed.touch(job, "finish");
  EXPECT_EQ(bed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  EXPECT_THAT(bed.lines(job, "trainings"), SizeIs(1));
}

TEST(SlurmFaults, QueriesFailWhileMungeIsDown) {
  SlurmBed bed;
  NEED(bed);
  const auto scheduler = bed.scheduler();
  const JobRequest job = bed.request("job", "until [ -e finish ]; do sleep 0.1; done");
  const JobId id = scheduler->submit(job, {});
  ASSERT_EQ(bed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  bed.facility().stop_daemon("munged");
  EXPECT_EQ(kind_of([&] { bed.status(*scheduler, id, job); }), ErrorKind::kRemote);
  const auto refused = kind_of([&] { scheduler->submit(bed.request("later"), {}); });
  EXPECT_TRUE(refused == ErrorKind::kBusy || refused == ErrorKind::kRemote);
  bed.facility().start_daemon("munged");
  bed.touch(job, "finish");
  EXPECT_EQ(bed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  EXPECT_THAT(bed.lines(job, "trainings"), SizeIs(1));
}

// A controller that lost its state reuses job ids.
TEST(SlurmFaults, AReusedIdIsUnknownAndNotCancelled) {
  SlurmBed bed;
  NEED(bed);
  const auto scheduler = bed.scheduler();
  const JobRequest job = bed.request("job"), other = bed.request("other", "sleep 60");
  const JobId id = scheduler->submit(job, {});
  EXPECT_EQ(bed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  bed.facility().stop_daemon("slurmctld", "KILL");
  bed.admin({"find", "/var/spool/slurmctld", "-type", "f", "-delete"});
  bed.facility().start_daemon("slurmctld");
  ASSERT_TRUE(bed.await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }, seconds(20)));
  ASSERT_EQ(scheduler->submit(other, {}), id) << "the controller did not lose its state";
  EXPECT_EQ(bed.status(*scheduler, id, job).state, JobState::kUnknown);
  EXPECT_TRUE(scheduler->find(job, {}).empty());
  // A cancellation by the old name leaves the new job alone.
  ASSERT_EQ(bed.await(*scheduler, id, other, JobState::kRunning).state, JobState::kRunning);
  scheduler->cancel({id, job.name}, {});
  EXPECT_EQ(bed.status(*scheduler, id, other).state, JobState::kRunning);
  scheduler->cancel({id, other.name}, {});
  EXPECT_EQ(bed.await(*scheduler, id, other, JobState::kCancelled).state, JobState::kCancelled);
}

}  // namespace
}  // namespace xffl::submit
