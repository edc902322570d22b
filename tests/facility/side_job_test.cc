// A job beside a run's jobs, whose command was stopped and is repeated.
#include "xffl/facility/side_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stop_token>
#include <string>
#include <vector>

#include "fake_services.h"
#include "support/forwarding_scheduler.h"
#include "xffl/base/error.h"
#include "xffl/plan/facility_layout.h"

namespace xffl::facility {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

const SidePlace kPlace{
    .parent = RemotePath("/w/prepare"), .name = "prepare", .report = "report.json"};

config::Facility alba() {
  config::Facility facility;
  facility.name = FacilityName("alba");
  facility.scheduler = submit::QueueSettings("slurm");
  return facility;
}

// The answer of its submission was lost: its folder has no id, and the queue does not show it.
TEST(SideJob, IsFencedWhenItCannotBeFound) {
  test::FakeServices fake;
  fake.session->make_dirs(RemotePath("/w/prepare/job1"));
  const config::Facility facility = alba();
  SideJob job(facility, seconds(1), fake.services, kPlace, {}, {});
  ASSERT_EQ(job.number(), 1);
  EXPECT_FALSE(job.is_under_way());
  EXPECT_TRUE(fake.session->stat(job.folder() / plan::kFence)) << "it may start late";
}

// An earlier command has submitted it.
JobId submitted_job(test::FakeServices& fake, submit::JobState state) {
  const JobId id = test::FakeScheduler(fake.cluster)
                       .submit({.name = "prepare-1", .script = {}, .folder = {}}, {});
  fake.cluster.set_state(id, state);
  fake.session->put("/w/prepare/job1/job.id", id.str());
  return id;
}

TEST(SideJob, IsUnderWayUntilItHasEnded) {
  using submit::JobState;
  for (const JobState state :
       {JobState::kPending, JobState::kHeld, JobState::kRunning, JobState::kEnded}) {
    test::FakeServices fake;
    submitted_job(fake, state);
    const config::Facility facility = alba();
    SideJob job(facility, seconds(1), fake.services, kPlace, {}, {});
    const bool has_ended = state == JobState::kEnded;
    EXPECT_EQ(job.is_under_way(), !has_ended) << submit::to_string(state);
    EXPECT_EQ(fake.session->stat(job.folder() / plan::kFence).has_value(), has_ended)
        << submit::to_string(state);
  }
}

// Its command was killed after the submission, and the next one collects the report.
TEST(SideJob, IsKnownByItsIdAfterItsReport) {
  test::FakeServices fake;
  const JobId id = submitted_job(fake, submit::JobState::kEnded);
  fake.session->put("/w/prepare/job1/report.json", "{}");
  const config::Facility facility = alba();
  SideJob job(facility, seconds(1), fake.services, kPlace, {}, {});
  EXPECT_FALSE(job.is_under_way());
  EXPECT_EQ(job.id(), id);
}

TEST(SideJob, IsFencedAheadOfItsCancellation) {
  test::FakeServices fake;
  const JobId id = submitted_job(fake, submit::JobState::kPending);
  const config::Facility facility = alba();
  SideJob job(facility, seconds(1), fake.services, kPlace, {}, {});
  ASSERT_TRUE(job.is_under_way());
  job.cancel();
  EXPECT_TRUE(fake.session->stat(job.folder() / plan::kFence));
  fake.cluster.set_state(id, submit::JobState::kPending);  // the controller has lost the command
  EXPECT_FALSE(job.is_under_way()) << "it will do no work";
}

TEST(SideJob, IsRequeuedOnlyIfItsShapeAllowsIt) {
  test::FakeServices fake;
  fake.services.programs = {"/x/xffl", "/x/xffl-train"};
  const config::Facility facility = alba();
  SideJob job(facility, seconds(1), fake.services, kPlace, {}, {});
  for (const bool may_requeue : {true, false}) {
    config::Facility shape = alba();
    shape.may_requeue = may_requeue;
    job.submit(shape, {});
    EXPECT_EQ(fake.cluster.jobs().back().may_requeue, may_requeue);
  }
}

// The interval is the policy's: the facility has none of its own.
TEST(SideJob, IsPolledOnceInEachInterval) {
  test::FakeServices fake;
  const JobId id = submitted_job(fake, submit::JobState::kPending);
  const config::Facility facility = alba();
  std::chrono::nanoseconds seen{0};
  SideJob job(facility, minutes(2), fake.services, kPlace, {}, [&](const std::string& message) {
    if (message.ends_with(" runs")) seen = fake.clock.elapsed();
  });
  ASSERT_TRUE(job.is_under_way());
  fake.clock.on_sleep = [&] { fake.cluster.set_state(id, submit::JobState::kRunning); };
  EXPECT_TRUE(job.follow([&] { return fake.clock.elapsed() > minutes(3); }));
  EXPECT_EQ(seen, minutes(2));
}

// Whether a command that polls so often follows its job to a report `late`, when the job ends at
// `end`.
bool follows_to_the_report(seconds interval, seconds end, seconds late) {
  test::FakeServices fake;
  const JobId id = submitted_job(fake, submit::JobState::kRunning);
  const config::Facility facility = alba();
  SideJob job(facility, interval, fake.services, kPlace, {}, {});
  EXPECT_TRUE(job.is_under_way());
  fake.clock.on_sleep = [&] {
    if (fake.clock.elapsed() >= end) fake.cluster.set_state(id, submit::JobState::kEnded);
  };
  return job.follow([&] { return fake.clock.elapsed() > late; });
}

TEST(SideJob, IsFollowedAcrossALinkThatDrops) {
  test::FakeServices fake;
  submitted_job(fake, submit::JobState::kRunning);
  const config::Facility facility = alba();
  SideJob job(facility, seconds(1), fake.services, kPlace, {}, {});
  ASSERT_TRUE(job.is_under_way());
  int looks = 0;
  EXPECT_TRUE(job.follow([&] {
    if (++looks < 3) throw Error(ErrorKind::kRemote, "the link is down");
    return true;
  }));
  EXPECT_EQ(looks, 3);
}

// A shared file system shows the report a moment after the job's end.
TEST(SideJob, TheReportOfALongJobMayBeLate) {
  EXPECT_TRUE(follows_to_the_report(seconds(1), minutes(5), minutes(5) + seconds(1)));
}

// The clients of some shared file systems see new files up to a minute late.
TEST(SideJob, TheReportMayBeNearlyAMinuteLate) {
  EXPECT_TRUE(follows_to_the_report(seconds(1), seconds(0), seconds(50)));
}

// The minute begins with the answer that the job is gone, not with the last query before.
TEST(SideJob, TheReportMayBeLateBetweenTwoQueries) {
  EXPECT_TRUE(follows_to_the_report(seconds(60), seconds(55), seconds(80)));
}

// A killed job writes no report. Its command would wait for ever.
TEST(SideJob, IsGivenUpAMinuteAfterItsEnd) {
  EXPECT_FALSE(follows_to_the_report(seconds(1), minutes(5), minutes(7)));
}

// The queue manager did not know the running job for a moment.
TEST(SideJob, IsFollowedWhenItIsKnownAgain) {
  test::FakeServices fake;
  const JobId id = submitted_job(fake, submit::JobState::kRunning);
  const config::Facility facility = alba();
  SideJob job(facility, seconds(1), fake.services, kPlace, {}, {});
  ASSERT_TRUE(job.is_under_way());
  fake.clock.on_sleep = [&] {
    const bool knows = fake.clock.elapsed() > seconds(10);
    fake.cluster.set_state(id, knows ? submit::JobState::kRunning : submit::JobState::kUnknown);
  };
  EXPECT_TRUE(job.follow([&] { return fake.clock.elapsed() > minutes(3); }));
}

// Notes the folders in which compute nodes would begin its jobs.
class NotingScheduler final : public test::ForwardingScheduler {
 public:
  NotingScheduler(std::shared_ptr<submit::Scheduler> inner, std::vector<std::string>& folders)
      : ForwardingScheduler(std::move(inner)), folders_(folders) {}
  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    folders_.push_back("submitted in " + request.directory().str());
    return ForwardingScheduler::submit(request, stop);
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token stop) override {
    folders_.push_back("sought in " + request.directory().str());
    return ForwardingScheduler::find(request, stop);
  }

 private:
  std::vector<std::string>& folders_;
};

// The user stops the command while the queue manager accepts its job.
class StoppingScheduler final : public test::ForwardingScheduler {
 public:
  StoppingScheduler(std::shared_ptr<submit::Scheduler> inner, std::stop_source& source)
      : ForwardingScheduler(std::move(inner)), source_(source) {}
  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    const JobId id = ForwardingScheduler::submit(request, stop);
    source_.request_stop();
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped in the command");
    return id;
  }

 private:
  std::stop_source& source_;
};

TEST(SideJob, KnowsItsJobAfterAStopInTheSubmission) {
  test::FakeServices fake;
  fake.services.programs = {"/x/xffl", "/x/xffl-train"};
  std::stop_source source;
  fake.services.scheduler = [&](const auto&, auto) {
    return std::make_shared<StoppingScheduler>(std::make_shared<test::FakeScheduler>(fake.cluster),
                                               source);
  };
  const config::Facility facility = alba();
  SideJob job(facility, seconds(1), fake.services, kPlace, source.get_token(), {});
  job.submit(facility, {});
  EXPECT_TRUE(fake.session->stat(job.folder() / "job.id"));
  EXPECT_THROW(job.submit(facility, {}), Error);
  EXPECT_EQ(fake.cluster.jobs().size(), 1u) << "a stopped command submits nothing";
}

// A job that is not found there counts as lost, and its command submits another one.
TEST(SideJob, BeginsInItsFolderOnComputeNodes) {
  test::FakeServices fake;
  fake.services.programs = {"/x/xffl", "/x/xffl-train"};
  std::vector<std::string> folders;
  fake.services.scheduler = [&](const auto&, auto) {
    return std::make_shared<NotingScheduler>(std::make_shared<test::FakeScheduler>(fake.cluster),
                                             folders);
  };
  config::Facility facility = alba();
  facility.compute_mounts = {"/w:/nodes"};
  SideJob first(facility, seconds(1), fake.services, kPlace, {}, {});
  first.submit(facility, {remote::NewFile{"job.json", "{}"}});
  fake.session->remove_tree(first.folder() / "job.id", {});  // the command died before it wrote it
  SideJob second(facility, seconds(1), fake.services, kPlace, {}, {});
  EXPECT_TRUE(second.is_under_way());
  EXPECT_EQ(second.id(), first.id());
  EXPECT_EQ(folders, (std::vector<std::string>{"submitted in /nodes/prepare/job1",
                                               "sought in /nodes/prepare/job1"}));
}

TEST(SideJob, TheEndOfALongOutputHidesASecretThatItCuts) {
  test::FakeServices fake;
  const config::Facility facility = alba();
  fake.session->make_dirs(RemotePath("/w/prepare/job1"));
  SideJob job(facility, seconds(1), fake.services, kPlace, {}, {});
  EXPECT_EQ(job.last_output(), "\n  (no output)");
  const std::string lines(1490, '.');  // 1500 bytes are shown
  for (const std::string secret :
       {"HF_TOKEN=hf_abcdefghijklmnopqrstuvwx",
        "-----BEGIN PRIVATE KEY-----\nMIIabcdefghijklmnop\n-----END PRIVATE KEY-----"}) {
    fake.session->put("/w/prepare/job1/job.out",
                      std::string(300'000, 'x') + "\n" + secret + "\n" + lines);
    EXPECT_THAT(job.last_output(), Not(HasSubstr(secret.substr(secret.size() - 6)))) << secret;
    EXPECT_THAT(job.last_output(), HasSubstr("\n  ..."));
  }
}

}  // namespace
}  // namespace xffl::facility
