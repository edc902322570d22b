// The contract of Scheduler, tested on every implementation.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "support/fake_queues.h"
#include "support/fake_scheduler.h"
#include "support/temp_dir.h"
#include "support/testbed_ssh.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/submit/flux.h"
#include "xffl/submit/grid_engine.h"
#include "xffl/submit/pbs.h"
#include "xffl/submit/scheduler.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

// A facility whose jobs run until finish(); each coordinator() is a new scheduler.
struct FacilityFixture {
  virtual ~FacilityFixture() = default;
  virtual std::string why_not() { return {}; }  // not empty: unavailable on this machine
  virtual std::shared_ptr<Scheduler> coordinator() = 0;
  virtual JobRequest request(const std::string& name) = 0;
  virtual void await_start(const JobRequest& request, const JobId& id) = 0;
  virtual void finish(const JobRequest& request, const JobId& id) = 0;
};

struct ProcessFacility : FacilityFixture {
  test::TempDir dir;

  std::shared_ptr<Scheduler> coordinator() override { return make_process_scheduler(); }
  JobRequest request(const std::string& name) override {
    const auto folder = std::filesystem::canonical(dir.path()) / name;
    std::filesystem::create_directory(folder);
    return {.name = name,
            .script =
                "mkdir claim || exit 0\n"
                "read -r stat <\"/proc/$$/stat\"\nset -- ${stat##*) }\n"
                "echo \"$$.${20} nonce\" >claim/owner.part\nmv claim/owner.part claim/owner\n"
                "while [ ! -e finish ]; do sleep 0.02; done\n",
            .folder = RemotePath(folder.string())};
  }
  void await_start(const JobRequest& request, const JobId&) override {
    while (!std::filesystem::exists(request.folder.str() + "/claim/owner"))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void finish(const JobRequest& request, const JobId&) override {
    write_file_atomic(request.folder.str() + "/finish", "");
  }
};

struct FakeFacility : FacilityFixture {
  test::FakeCluster cluster;

  std::shared_ptr<Scheduler> coordinator() override {
    return std::make_unique<test::FakeScheduler>(cluster);
  }
  JobRequest request(const std::string& name) override {
    return {.name = name, .script = "true\n", .folder = RemotePath("/scratch/" + name)};
  }
  void await_start(const JobRequest&, const JobId& id) override {
    cluster.set_state(id, JobState::kRunning);
  }
  void finish(const JobRequest&, const JobId& id) override {
    cluster.set_state(id, JobState::kEnded);
  }
};

// A real facility, one for all tests of a queue manager; each test has its own job names.
struct RealFacility : FacilityFixture {
  explicit RealFacility(const test::Testbed& testbed) : testbed_(testbed) {
    static int count = 0;
    suffix_ = "-" + std::to_string(++count);
  }
  std::string why_not() override { return testbed_.why_not(); }
  JobRequest request(const std::string& name) override {
    const RemotePath folder(there().scratch + "/" + name + suffix_);
    there().exec_as_user({"mkdir", "-p", folder.str()});
    return {.name = name + suffix_,
            .script = "#!/bin/sh\ntouch started\nwhile [ ! -e finish ]; do sleep 0.1; done\n",
            .folder = folder};
  }
  void await_start(const JobRequest& request, const JobId&) override {
    const auto started = [&] {
      return there().exec_as_user({"ls", request.folder.str() + "/started"});
    };
    for (int i = 0; i < 600 && started().exit_code != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  void finish(const JobRequest& request, const JobId&) override {
    there().exec_as_user({"touch", request.folder.str() + "/finish"});
  }
  const test::Facility& there() const { return testbed_.facility("alba"); }
  std::shared_ptr<remote::Session> session() const {
    return remote::make_ssh_session(test::ssh_settings(there()));
  }

  const test::Testbed& testbed_;
  SystemClock clock_;
  std::string suffix_;
};

struct SlurmFacility : RealFacility {
  SlurmFacility() : RealFacility(shared()) {}
  static test::Testbed& shared() {
    static test::Testbed testbed({"alba"});
    return testbed;
  }
  std::shared_ptr<Scheduler> coordinator() override {
    return make_slurm_scheduler({}, session(), clock_);
  }
};

struct GridEngineFacility : RealFacility {
  GridEngineFacility() : RealFacility(shared()) {}
  static test::Testbed& shared() {
    static test::Testbed testbed({"alba"}, {"--queue", "gridengine"});
    return testbed;
  }
  std::shared_ptr<Scheduler> coordinator() override {
    return make_grid_engine_scheduler({}, session(), clock_);
  }
};

// The commands of PBS and Flux are programs that answer in the documented formats.
template <auto make, class Settings>
struct FakeCommandFacility : FacilityFixture {
  test::FakeQueues queues;
  SystemClock clock;

  std::shared_ptr<Scheduler> coordinator() override {
    return make(Settings{}, remote::make_local_session(), clock);
  }
  JobRequest request(const std::string& name) override {
    const auto folder = queues.folder() / name;
    std::filesystem::create_directory(folder);
    return {.name = name,
            .script = "#!/bin/sh\ntouch started\nwhile [ ! -e finish ]; do sleep 0.02; done\n",
            .folder = RemotePath(folder.string())};
  }
  void await_start(const JobRequest& request, const JobId&) override {
    for (int i = 0; i < 4000 && !std::filesystem::exists(request.folder.str() + "/started"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void finish(const JobRequest& request, const JobId&) override {
    write_file_atomic(request.folder.str() + "/finish", "");
  }
};
using PbsFacility = FakeCommandFacility<make_pbs_scheduler, PbsSettings>;
using FluxFacility = FakeCommandFacility<make_flux_scheduler, FluxSettings>;

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<FacilityFixture>()> make;
};

class SchedulerContract : public testing::TestWithParam<Implementation> {
 protected:
  std::unique_ptr<FacilityFixture> facility_ = GetParam().make();
  std::shared_ptr<Scheduler> scheduler_;
  std::vector<JobId> started_;
  std::map<JobId, std::string> names_;

  void SetUp() override {
    if (const std::string why_not = facility_->why_not(); !why_not.empty()) GTEST_SKIP() << why_not;
    scheduler_ = facility_->coordinator();
  }
  ~SchedulerContract() override {
    for (const JobId& id : started_) scheduler_->cancel(named(id), {});
  }

  JobId start(const JobRequest& request) {
    const JobId id = scheduler_->submit(request, {});
    started_.push_back(id);
    names_[id] = request.name;
    facility_->await_start(request, id);
    return id;
  }
  // An unknown id has no name.
  SubmittedJob named(const JobId& id) const {
    const auto name = names_.find(id);
    return {id, name == names_.end() ? "" : name->second};
  }
  JobState state_of(Scheduler& scheduler, const JobId& id) {
    const SubmittedJob job = named(id);
    return scheduler.query(std::span(&job, 1), {}).at(id).state;
  }
  static bool ended(JobState state) {
    return state == JobState::kEnded || state == JobState::kCancelled;
  }
  JobState await_end(Scheduler& scheduler, const JobId& id) {
    JobState state = state_of(scheduler, id);
    for (int i = 0; i < 1000 && !ended(state); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      state = state_of(scheduler, id);
    }
    return state;
  }
};

TEST_P(SchedulerContract, AJobRunsAndEnds) {
  const JobRequest request = facility_->request("job-a");
  const JobId id = start(request);
  EXPECT_EQ(state_of(*scheduler_, id), JobState::kRunning);
  facility_->finish(request, id);
  EXPECT_EQ(await_end(*scheduler_, id), JobState::kEnded);
  EXPECT_EQ(state_of(*scheduler_, id), JobState::kEnded);
}

TEST_P(SchedulerContract, FindsAJobByItsNameOnly) {
  const JobRequest a = facility_->request("job-a"), b = facility_->request("job-b");
  EXPECT_TRUE(scheduler_->find(a, {}).empty());
  const JobId id = start(a);
  EXPECT_EQ(scheduler_->find(a, {}), std::vector{id});
  EXPECT_TRUE(scheduler_->find(b, {}).empty());
}

TEST_P(SchedulerContract, QueryHasAnEntryForEveryIdAndAnUnknownIdIsNotRunning) {
  const JobId id = start(facility_->request("job-a"));
  const std::vector<JobId> ids = {id, JobId("999999999.1"), JobId("some-other+job")};
  std::vector<SubmittedJob> jobs;
  for (const JobId& each : ids) jobs.push_back(named(each));
  const auto states = scheduler_->query(jobs, {});
  ASSERT_EQ(states.size(), 3u);
  EXPECT_EQ(states.at(id).state, JobState::kRunning);
  for (const JobId& unknown : {ids[1], ids[2]}) {
    EXPECT_NE(states.at(unknown).state, JobState::kRunning);
    EXPECT_NE(states.at(unknown).state, JobState::kPending);
  }
  EXPECT_TRUE(scheduler_->query({}, {}).empty());
}

TEST_P(SchedulerContract, CancelEndsAJobAndIgnoresAnEndedOne) {
  const JobId id = start(facility_->request("job-a"));
  scheduler_->cancel(named(id), {});
  EXPECT_TRUE(ended(await_end(*scheduler_, id)));
  scheduler_->cancel(named(id), {});
  scheduler_->cancel(named(JobId("never-heard-of")), {});
}

TEST_P(SchedulerContract, AnotherCoordinatorFindsQueriesAndCancelsTheJob) {
  const JobRequest request = facility_->request("job-a");
  const JobId id = start(request);
  const std::shared_ptr<Scheduler> second = facility_->coordinator();
  EXPECT_EQ(second->find(request, {}), std::vector{id});
  EXPECT_EQ(state_of(*second, id), JobState::kRunning);
  second->cancel(named(id), {});
  EXPECT_TRUE(ended(await_end(*second, id)));
}

TEST_P(SchedulerContract, AnEndedJobIsStillFoundAndNotRunning) {
  const JobRequest request = facility_->request("job-a");
  const JobId id = start(request);
  facility_->finish(request, id);
  await_end(*scheduler_, id);
  EXPECT_EQ(scheduler_->find(request, {}), std::vector{id});
  EXPECT_TRUE(ended(state_of(*facility_->coordinator(), id)));
}

TEST_P(SchedulerContract, SubmitsNothingWhenStopped) {
  std::stop_source stop;
  stop.request_stop();
  const JobRequest request = facility_->request("job-a");
  try {
    started_.push_back(scheduler_->submit(request, stop.get_token()));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  }
  EXPECT_TRUE(scheduler_->find(request, {}).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Schedulers, SchedulerContract,
    testing::Values(Implementation{"Process", [] { return std::make_unique<ProcessFacility>(); }},
                    Implementation{"Fake", [] { return std::make_unique<FakeFacility>(); }},
                    Implementation{"Slurm", [] { return std::make_unique<SlurmFacility>(); }},
                    Implementation{"GridEngine",
                                   [] { return std::make_unique<GridEngineFacility>(); }},
                    Implementation{"Pbs", [] { return std::make_unique<PbsFacility>(); }},
                    Implementation{"Flux", [] { return std::make_unique<FluxFacility>(); }}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace xffl::submit
