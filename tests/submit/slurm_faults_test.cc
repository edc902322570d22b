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
  ASSERT_TRUE(test::await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }));
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
  ASSERT_TRUE(test::await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }));
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

// Starts a second cluster, "twin", on the hosts of the first one. Both use one slurmdbd.
constexpr const char* kStartTwin = R"sh(set -e
mkdir -p /etc/slurm2 /var/spool/slurmctld2
chown slurm /var/spool/slurmctld2
sed -e 's/^ClusterName=.*/ClusterName=twin/' -e 's|^StateSaveLocation=.*|StateSaveLocation=/var/spool/slurmctld2|' \
  -e 's|^SlurmdSpoolDir=.*|SlurmdSpoolDir=/var/spool/slurmd2|' -e 's|slurmctld\.|slurmctld2.|' -e 's|slurmd-%n|slurmd2-%n|' \
  /etc/slurm/slurm.conf >/etc/slurm2/slurm.conf
printf 'SlurmctldPort=6827\nSlurmdPort=6828\n' >>/etc/slurm2/slurm.conf
cp /etc/slurm/gres.conf /etc/slurm2/
user=$(stat -c %U /scratch)
sacctmgr -i add cluster twin
sacctmgr -i add account proj cluster=twin
sacctmgr -i add user "$user" account=proj cluster=twin
slurmctld -f /etc/slurm2/slurm.conf
for n in 1 2; do
  nsenter -t "$(cat /run/xffl/node$n.pid)" -n -u -m -p sh -c 'mkdir -p /var/spool/slurmd2; slurmd -N "$0" -f /etc/slurm2/slurm.conf' "alba$n"
done
for i in $(seq 100); do
  [ "$(sinfo -M twin -h -N -p main -o %T | grep -c idle)" = 2 ] && exit
  sleep 0.2
done
exit 1
)sh";

TEST(SlurmFaults, AJobOfAnotherClusterIsFoundOnlyThere) {
  SlurmTestbed testbed({"--dbd"});
  NEED(testbed);
  testbed.admin({"bash", "-c", kStartTwin});
  const auto here = testbed.scheduler();
  testbed.settings.cluster = "twin";
  const auto twin = testbed.scheduler();
  const std::string wait = "until [ -e finish ]; do sleep 0.1; done";
  // Both clusters give the id 1.
  const JobRequest job = testbed.request("job", wait), other = testbed.request("other", wait);
  const JobId id = twin->submit(job, {});
  const JobId other_id = here->submit(other, {});
  EXPECT_EQ(id, other_id);
  ASSERT_EQ(testbed.await(*twin, id, job, JobState::kRunning).state, JobState::kRunning);
  ASSERT_EQ(testbed.await(*here, id, other, JobState::kRunning).state, JobState::kRunning);
  EXPECT_EQ(twin->find(job, {}), std::vector{id});
  EXPECT_TRUE(here->find(job, {}).empty());
  EXPECT_TRUE(twin->find(other, {}).empty());
  EXPECT_EQ(testbed.status(*here, id, job).state, JobState::kUnknown);
  here->cancel({id, job.name}, {});
  EXPECT_EQ(testbed.status(*twin, id, job).state, JobState::kRunning);
  EXPECT_EQ(testbed.status(*here, id, other).state, JobState::kRunning);
  // twin's controller forgets its job: the shared accounting knows it by its cluster.
  testbed.touch(job, "finish");
  EXPECT_EQ(testbed.await(*twin, id, job, JobState::kEnded).native, "COMPLETED");
  testbed.admin({"sh", "-c",
                 "kill $(cat /run/slurm/slurmctld2.pid); sleep 1; find /var/spool/slurmctld2 -type "
                 "f -delete; slurmctld -f /etc/slurm2/slurm.conf"});
  EXPECT_TRUE(test::await([&] { return !kind_of([&] { twin->find(job, {}); }); }));
  EXPECT_EQ(testbed.await(*twin, id, job, JobState::kEnded).native, "COMPLETED");
  EXPECT_EQ(testbed.status(*here, id, job).state, JobState::kUnknown);
  here->cancel({other_id, other.name}, {});
  EXPECT_EQ(testbed.await(*here, other_id, other, JobState::kCancelled).state,
            JobState::kCancelled);
}

// A federation gives ids of its own, and a job may run at a sibling of the cluster that took it.
TEST(SlurmFaults, AJobOfAFederationIsFoundAndCancelled) {
  SlurmTestbed testbed({"--dbd"});
  NEED(testbed);
  testbed.admin({"bash", "-c", kStartTwin});
  testbed.admin({"sacctmgr", "-i", "add", "federation", "both", "clusters=alba,twin"});
  ASSERT_TRUE(test::await([&] {
    return testbed.admin({"scontrol", "show", "federation"}).find("twin") != std::string::npos;
  }));
  testbed.settings.exclusive = true;
  testbed.settings.nodes = 2;
  const auto scheduler = testbed.scheduler();
  const std::string wait = "until [ -e finish ]; do sleep 0.1; done";
  const JobRequest first = testbed.request("first", wait), second = testbed.request("second", wait);
  // Each one fills a cluster.
  const JobId a = scheduler->submit(first, {}), b = scheduler->submit(second, {});
  EXPECT_GT(std::stoull(a.str()), 1u << 26) << "no id of a federation";
  EXPECT_EQ(testbed.await(*scheduler, a, first, JobState::kRunning).state, JobState::kRunning);
  EXPECT_EQ(testbed.await(*scheduler, b, second, JobState::kRunning).state, JobState::kRunning);
  EXPECT_EQ(scheduler->find(first, {}), std::vector{a});
  EXPECT_EQ(scheduler->find(second, {}), std::vector{b});
  testbed.touch(first, "finish");
  EXPECT_EQ(testbed.await(*scheduler, a, first, JobState::kEnded).native, "COMPLETED");
  EXPECT_EQ(testbed.lines(first, "trainings").size(), 1u);
  scheduler->cancel({b, second.name}, {});
  EXPECT_EQ(testbed.await(*scheduler, b, second, JobState::kCancelled).state, JobState::kCancelled);
}

// The job ran over midnight, or was submitted 29 days ago, by the cluster's clock.
TEST(SlurmFaults, TheAccountingFindsAJobThatRanOverMidnight) {
  SlurmTestbed testbed({"--dbd"});
  NEED(testbed);
  const auto scheduler = testbed.scheduler();
  const JobRequest job = testbed.request("job");
  const JobId id = scheduler->submit(job, {});
  ASSERT_EQ(testbed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  ASSERT_TRUE(test::await([&] {
    return testbed.admin({"sacct", "-aXnj", id.str(), "-o", "State"}).find("COMPLETED") !=
           std::string::npos;
  }));
  testbed.facility().stop_daemon("slurmctld");
  testbed.admin({"find", "/var/spool/slurmctld", "-type", "f", "-delete"});
  testbed.facility().start_daemon("slurmctld");
  ASSERT_TRUE(test::await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }));
  for (const int days : {0, 1, 29}) {
    const std::string midnight = "unix_timestamp(curdate()) - " + std::to_string(days) + " * 86400";
    testbed.admin({"mariadb", "-S", "/run/mysqld/mysqld.sock", "-e",
                   "update slurm_acct.alba_job_table set time_submit=" + midnight +
                       "-90, time_eligible=" + midnight + "-90, time_start=" + midnight +
                       "-60, time_end=" + midnight + "+60 where id_job=" + id.str()});
    EXPECT_EQ(testbed.status(*scheduler, id, job).native, "COMPLETED") << days;
    EXPECT_EQ(scheduler->find(job, {}), std::vector{id}) << days;
  }
}

}  // namespace
}  // namespace xffl::submit
