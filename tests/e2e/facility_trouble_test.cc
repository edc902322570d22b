// Any error of one facility is that facility's trouble: it is retried, the run goes on, and nothing
// that was trained is lost. The trainings are those of xffl-fake-trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "e2e/in_process.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/facility/context.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/upkeep/credential_watch.h"
#include "xffl/upkeep/purge_guard.h"
#include "xffl/upkeep/retention.h"

namespace xffl::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr ErrorKind kAllKinds[] = {
    ErrorKind::kInternal, ErrorKind::kUsage,    ErrorKind::kConfig,    ErrorKind::kNotFound,
    ErrorKind::kCorrupt,  ErrorKind::kRejected, ErrorKind::kIo,        ErrorKind::kRemote,
    ErrorKind::kAuth,     ErrorKind::kBusy,     ErrorKind::kCancelled, ErrorKind::kUnsupported,
    ErrorKind::kFailed};

// Throws every kind in turn from one call, each more often in a row than the fetch of an update
// reads its files; then the call works.
class Burst {
 public:
  explicit Burst(const std::set<ErrorKind>& without = {}) {
    for (const ErrorKind kind : kAllKinds)
      if (!without.contains(kind)) kinds_.push_back(kind);
  }
  void operator()() {
    constexpr size_t kTimes = 4;
    const size_t call = calls_++;
    if (call / kTimes < kinds_.size())
      throw Error(kinds_[call / kTimes], "trouble " + std::to_string(call));
  }
  /// True when every kind was thrown.
  bool is_over() const { return calls_ >= 4 * kinds_.size(); }
  size_t calls() const { return calls_; }

 private:
  std::vector<ErrorKind> kinds_;
  std::atomic<size_t> calls_{0};
};

// A scheduler whose calls of one operation fail.
class TroubledScheduler final : public ForwardingScheduler {
 public:
  TroubledScheduler(std::shared_ptr<submit::Scheduler> inner, std::string operation, Burst& burst)
      : ForwardingScheduler(std::move(inner)), operation_(std::move(operation)), burst_(burst) {}

  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    fail("submit");
    JobId job = ForwardingScheduler::submit(request, stop);
    if (after_submit) after_submit();
    return job;
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token stop) override {
    fail("find");
    return ForwardingScheduler::find(request, stop);
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token stop) override {
    fail("query");
    return ForwardingScheduler::query(jobs, stop);
  }
  std::function<void()> after_submit;  // may throw: the answer of a submission is lost

 private:
  void fail(const std::string& operation) {
    if (operation == operation_) burst_();
  }
  const std::string operation_;
  Burst& burst_;
};

class FacilityTrouble : public InProcessFederation {
 protected:
  FacilityTrouble() {
    clock_.longest_sleep = milliseconds(2);
    brno_settles_ = milliseconds(5);
    brno_waits_ = [] { return false; };
  }
  void expect_nothing_lost(int rounds = 3) {
    EXPECT_EQ(project_.count_events("submitted"), 2 * rounds);
    expect_each_trained_once(rounds);
  }
  void expect_each_trained_once(int rounds) {
    EXPECT_EQ(project_.trainings().size(), 2u * static_cast<size_t>(rounds));
    EXPECT_EQ(project_.count_events("update_accepted"), 2 * rounds);
    EXPECT_EQ(project_.count_events("attempt_failed"), 0);
    EXPECT_EQ(project_.count_events("update_lost"), 0);
  }
};

class SessionTrouble : public FacilityTrouble, public testing::WithParamInterface<const char*> {};

TEST_P(SessionTrouble, OfEveryKindIsRetried) {
  Burst burst;
  watch("brno", [&](const std::string& operation, const RemotePath&) {
    if (operation == GetParam()) burst();
  });
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_GT(burst.calls(), 0u) << "the test tells nothing";
  expect_nothing_lost();
}
INSTANTIATE_TEST_SUITE_P(Calls, SessionTrouble,
                         testing::Values("stat", "read", "write", "rename", "list", "make_dirs",
                                         "remove_tree"),
                         [](const auto& each) { return std::string(each.param); });

// The same while the update is fetched, when a wrong decision would throw away a training.
class FetchTrouble : public FacilityTrouble, public testing::WithParamInterface<const char*> {};

TEST_P(FetchTrouble, OfEveryKindRejectsNoUpdate) {
  Burst burst;
  std::atomic<bool> reported{false};
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (path.str().ends_with("out/update/manifest.json")) reported = true;
    if (reported && operation == GetParam()) burst();
  });
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_TRUE(burst.is_over()) << "the test tells nothing";
  expect_nothing_lost();
}
INSTANTIATE_TEST_SUITE_P(Calls, FetchTrouble, testing::Values("stat", "read"),
                         [](const auto& each) { return std::string(each.param); });

// A permanent rejection (kConfig from submit()) is no trouble: SlurmScheduler has its tests.
TEST_F(FacilityTrouble, OfASubmissionIsRetried) {
  Burst burst({ErrorKind::kConfig});
  brno_scheduler_ = [&](Scheduler inner) {
    return std::make_shared<TroubledScheduler>(std::move(inner), "submit", burst);
  };
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_TRUE(burst.is_over()) << "the test tells nothing";
  expect_nothing_lost();
}

TEST_F(FacilityTrouble, OfAQueryIsRetried) {
  project_.set_hold();  // the jobs run until every kind was thrown
  project_.write_config();
  Burst burst;
  const std::jthread releases([&] {
    await([&] { return burst.is_over(); });
    project_.release();
  });
  brno_scheduler_ = [&](Scheduler inner) {
    return std::make_shared<TroubledScheduler>(std::move(inner), "query", burst);
  };
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_TRUE(burst.is_over()) << "the test tells nothing";
  expect_nothing_lost();
}

// The answers of the first submissions are lost, whatever the error; then the searches fail, too.
// A deferred submission (kBusy) has no job, so its answer cannot be lost.
TEST_F(FacilityTrouble, OfASearchIsRetried) {
  constexpr int kRounds = 12;
  project_.set_rounds(kRounds);
  project_.write_config();
  Burst search;
  std::vector<ErrorKind> lost;
  for (const ErrorKind kind : kAllKinds)
    if (kind != ErrorKind::kConfig && kind != ErrorKind::kBusy && kind != ErrorKind::kAuth)
      lost.push_back(kind);
  std::atomic<size_t> submissions{0};
  brno_scheduler_ = [&](Scheduler inner) {
    auto troubled = std::make_shared<TroubledScheduler>(std::move(inner), "find", search);
    troubled->after_submit = [&] {
      if (const size_t number = submissions++; number < lost.size())
        throw Error(lost[number], "the answer is lost");
    };
    return troubled;
  };
  EXPECT_EQ(run().rounds_published, kRounds);
  EXPECT_TRUE(search.is_over()) << "the test tells nothing";
  EXPECT_GE(submissions, lost.size());
  // On a busy machine a job may claim its attempt after both searches, which are milliseconds apart
  // here. Then its duplicate is submitted, trains nothing, and the first job is adopted.
  EXPECT_GE(project_.count_events("submitted"), 2 * kRounds);
  expect_each_trained_once(kRounds);
}

// --- The budget of attempts ---

class RestartLoop : public InProcessFederation {
 protected:
  RestartLoop() {
    project_.set_rounds(1);
    project_.set_policy("{on_missing: wait, max_attempts: 3, poll_interval: 20ms}");
    project_.set_fault("brno", "nan!");
    project_.write_config();
  }
  void restart(int times) {
    for (int i = 0; i < times; ++i) {
      stop_ = std::stop_source();
      const Error error = error_of([&] { run(); });
      ASSERT_EQ(error.kind(), ErrorKind::kFailed) << error.what();
      last_ = error.what();
    }
  }
  void resume(const std::string& facility) {
    const config::Experiment experiment = config::load_experiment(project_.path());
    facility::Services made = services();
    run::operate(experiment, {project_.path() / "runs", RunName("0001")}, made,
                 {history::Request::Kind::kResume, {FacilityName(facility)}, ""}, seconds(10));
  }
  size_t started() const { return project_.jobs("brno").size(); }
  std::string last_;
};

TEST_F(RestartLoop, DoesNotRefillTheBudgetOfAttempts) {
  restart(50);
  EXPECT_EQ(started(), 3u);
  EXPECT_EQ(project_.jobs("alba").size(), 1u);
  EXPECT_THAT(last_, HasSubstr("policy.max_attempts is 3"));
  EXPECT_THAT(last_, HasSubstr("`xffl resume`"));
}

TEST_F(RestartLoop, AUsersResumeRenewsTheBudget) {
  restart(5);
  ASSERT_EQ(started(), 3u);
  resume("brno");
  restart(5);
  EXPECT_EQ(started(), 6u);
  resume("alba");  // has its update
  restart(2);
  EXPECT_EQ(started(), 6u);
  EXPECT_EQ(project_.jobs("alba").size(), 1u);
  project_.set_fault("brno", "");
  project_.write_config();
  resume("brno");
  stop_ = std::stop_source();
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(started(), 7u);
}

TEST_F(RestartLoop, AChangedConfigurationRenewsTheBudgetOnce) {
  restart(5);
  ASSERT_EQ(started(), 3u);
  change_ = [](config::Experiment& experiment) { experiment.policy.keep_rounds = 7; };
  restart(10);
  EXPECT_EQ(started(), 6u);
}

// --- A changed policy ---

// The job stops before its walltime with a checkpoint, as its job.json asks; meanwhile the user has
// changed policy.on_walltime.
TEST_F(InProcessFederation, ACheckpointOfAnEarlierOnWalltimeIsContinued) {
  project_.set_rounds(1);
  project_.set_fault("alba", "stopped@1");
  project_.set_policy(
      "{on_missing: wait, poll_interval: 20ms, on_walltime: resume, max_attempts: 1}");
  project_.set_hold();
  project_.write_config();
  std::jthread operator_thread([&] {
    project_.await_events("submitted", 2);
    stop_.request_stop();
  });
  EXPECT_EQ(error_of([&] { run(); }).kind(), ErrorKind::kCancelled);
  operator_thread.join();
  change_ = [](config::Experiment& experiment) {
    experiment.policy.on_walltime = config::OnWalltime::kUse;
  };
  stop_ = std::stop_source();
  project_.release();
  EXPECT_EQ(run().rounds_published, 1);
  const history::RunState state = project_.history();
  const auto& attempts = state.rounds.at(1).facilities.at(FacilityName("alba")).attempts;
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_THAT(attempts[0].failure.value_or(""), StartsWith("stopped ahead of its walltime"));
}

// --- Removals ---

// A clock that only the test advances, and that counts the looks at it.
class ObservedClock final : public Clock {
 public:
  MonotonicTime monotonic() const override {
    ++looks;
    return MonotonicTime(elapsed.load());
  }
  UtcTime utc() const override { return SystemClock().utc(); }
  bool sleep(std::chrono::nanoseconds duration, std::stop_token stop) override {
    return SystemClock().sleep(duration, std::move(stop));
  }
  mutable std::atomic<int> looks{0};
  std::atomic<milliseconds> elapsed{milliseconds(0)};
};

// A run's folder, opened as the coordinator does.
struct OpenedRun {
  OpenedRun(const config::Experiment& experiment, const std::filesystem::path& project,
            facility::Services& services)
      : folder{project / "runs", RunName("0001")},
        history(folder.journal()),
        live(folder.live(), services.clock),
        context{experiment, folder, services, none, history, live, *history.state().identity, {}} {}
  const history::RunFolder folder;
  const facility::Observer none;
  history::RunHistory history;
  history::StatusFile live;
  facility::Context context;
};

// A removal takes longer than two rounds: the rounds that ended meanwhile are removed after it.
TEST_F(InProcessFederation, RoundsThatEndDuringARemovalAreRemovedAfterIt) {
  project_.set_rounds(5);
  project_.set_policy("{on_missing: wait, keep_rounds: 9, poll_interval: 20ms}");
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 5);
  ASSERT_EQ(names_in(facility_folder("alba"), "r0").size(), 5u);

  config::Experiment experiment = config::load_experiment(project_.path());
  experiment.policy.keep_rounds = 1;
  facility::Services made = facility::make_services(clock_, project_.path());
  std::atomic<bool> removes{false}, goes_on{false};
  made.connect = [&](const config::Facility&) -> std::shared_ptr<remote::Session> {
    return std::make_shared<WatchedSession>([](const std::string&, const RemotePath&) {},
                                            [&](const std::stop_token&) {
                                              removes = true;
                                              EXPECT_TRUE(await([&] { return goes_on.load(); }));
                                            });
  };
  OpenedRun opened(experiment, project_.path(), made);
  const auto model_of = [&](int round) {
    return plan::model_folder_name(opened.history.model_sha256(round));
  };
  const auto models = facility_folder("alba") / "models";
  std::filesystem::create_directory(models / model_of(5));  // pushed for the next round
  upkeep::RetentionWorker cleaner(opened.context);
  for (int round = 2; round <= 5; ++round) {
    const auto plan = plan::next_round(experiment, opened.context.identity,
                                       {.rounds_published = round - 1,
                                        .model_sha256 = opened.history.model_sha256(round - 1),
                                        .accepted = {}});
    ASSERT_TRUE(plan);
    cleaner.after(*plan);
    if (round == 2) {
      EXPECT_TRUE(await([&] { return removes.load(); }));
    }
  }
  goes_on = true;
  cleaner.finish({});
  EXPECT_EQ(names_in(facility_folder("alba"), "r0"), std::vector<std::string>{"r0005"});
  EXPECT_EQ(names_in(facility_folder("brno"), "r0"), std::vector<std::string>{"r0005"});
  EXPECT_THAT(names_in(models, ""), testing::UnorderedElementsAre(model_of(4), model_of(5)));
}

// The first search for old rounds fails.
TEST_F(InProcessFederation, RoundsAtAFacilityThatCannotBeListedAreRemovedLater) {
  project_.set_rounds(2);
  project_.set_policy("{on_missing: wait, keep_rounds: 5, poll_interval: 20ms}");
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 2);
  ASSERT_EQ(names_in(facility_folder("brno"), "r0").size(), 2u);
  config::Experiment experiment = config::load_experiment(project_.path());
  experiment.policy.keep_rounds = 1;
  std::atomic<bool> failed{false};
  watch("brno", [&](const std::string& operation, const RemotePath&) {
    if (operation == "list" && !failed.exchange(true))
      throw Error(ErrorKind::kRemote, "the link is down");
  });
  facility::Services made = services();
  OpenedRun opened(experiment, project_.path(), made);
  const auto plan = plan::next_round(
      experiment, opened.context.identity,
      {.rounds_published = 1, .model_sha256 = opened.history.model_sha256(1), .accepted = {}});
  ASSERT_TRUE(plan);
  upkeep::RetentionWorker cleaner(opened.context);
  cleaner.after(*plan);
  cleaner.finish({});
  EXPECT_TRUE(failed);
  EXPECT_EQ(names_in(facility_folder("brno"), "r0"), std::vector<std::string>{"r0002"});
}

// By a changed policy, its successor keeps the models and updates of more rounds.
TEST_F(InProcessFederation, AStaleCoordinatorRemovesNoUpdateFromItsMachine) {
  project_.set_rounds(2);
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 2);
  config::Experiment experiment = config::load_experiment(project_.path());
  experiment.policy.keep_updates = 1;
  facility::Services made = services();
  OpenedRun opened(experiment, project_.path(), made);
  std::filesystem::remove(opened.folder.journal().string() + ".lock");
  const history::RunHistory successor(opened.folder.journal());
  const auto plan = plan::next_round(
      experiment, opened.context.identity,
      {.rounds_published = 1, .model_sha256 = opened.history.model_sha256(1), .accepted = {}});
  ASSERT_TRUE(plan);
  upkeep::RetentionWorker cleaner(opened.context);
  cleaner.after(*plan);
  cleaner.finish({});
  for (const char* name : {"alba", "brno"})
    EXPECT_TRUE(std::filesystem::exists(opened.folder.facility(1, FacilityName(name)) / "update"))
        << name;
}

// One facility needs hours to remove its old rounds: the others' are removed, and the end of the
// run waits for 120 s of simulated time.
TEST_F(InProcessFederation, ASlowRemovalDelaysTheEndOfTheRunBy120Seconds) {
  project_.set_policy("{on_missing: wait, keep_rounds: 5, poll_interval: 20ms}");
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 3);
  ASSERT_EQ(names_in(facility_folder("brno"), "r0").size(), 3u);

  config::Experiment experiment = config::load_experiment(project_.path());
  experiment.policy.keep_rounds = 1;
  ObservedClock clock;
  facility::Services made = facility::make_services(clock, project_.path());
  std::atomic<bool> removes{false}, interrupted{false};
  made.connect = [&](const config::Facility& facility) -> std::shared_ptr<remote::Session> {
    if (facility.name.str() != "alba") return remote::make_local_session();
    return std::make_shared<WatchedSession>(
        [](const std::string&, const RemotePath&) {},
        [&](const std::stop_token& stop) {
          removes = true;
          interrupted = !SystemClock().sleep(std::chrono::hours(1), stop);
          throw Error(ErrorKind::kCancelled, "stopped in the middle");
        });
  };
  OpenedRun opened(experiment, project_.path(), made);
  const auto plan = plan::next_round(
      experiment, opened.context.identity,
      {.rounds_published = 2, .model_sha256 = opened.history.model_sha256(2), .accepted = {}});
  ASSERT_TRUE(plan);
  {
    upkeep::RetentionWorker cleaner(opened.context);
    cleaner.after(*plan);
    std::atomic<bool> finished{false};
    std::jthread end([&] {
      cleaner.finish({});
      finished = true;
    });
    EXPECT_TRUE(await([&] {
      return removes &&
             names_in(facility_folder("brno"), "r0") == std::vector<std::string>{"r0003"};
    }));
    EXPECT_TRUE(await([&] { return clock.looks >= 2; })) << "the wait has not begun";
    clock.elapsed = milliseconds(119'999);
    const int looks = clock.looks;
    EXPECT_TRUE(await([&] { return clock.looks >= looks + 2; }));
    EXPECT_FALSE(finished) << "after 119.999 s";
    clock.elapsed = seconds(120);
    EXPECT_TRUE(await([&] { return finished.load(); })) << "after 120 s";
    std::stop_source request;
    request.request_stop();
    std::atomic<bool> ended{false};
    const std::jthread stopped_end([&] {
      cleaner.finish(request.get_token());
      ended = true;
    });
    EXPECT_TRUE(await([&] { return ended.load(); })) << "at once after a stop request";
    clock.elapsed = seconds(240);
    EXPECT_EQ(names_in(facility_folder("alba"), "r0").size(), 3u);
    EXPECT_FALSE(interrupted);
  }
  EXPECT_TRUE(interrupted);
}

// --- Checks of all facilities ---

// alba, the first facility, has no certificate, or its key file cannot be read. The first look at
// brno's certificate is too early for a warning.
TEST_F(InProcessFederation, ACertificateIsWatchedBesideAFacilityWithoutOne) {
  project_.set_rounds(1);
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 1);
  const config::Experiment experiment = config::load_experiment(project_.path());
  std::atomic<int> num_looks = 0;
  for (const bool is_readable : {true, false}) {
    facility::Services made = services();
    made.credential_expiry =
        [&](const config::Facility& facility) -> std::optional<Clock::UtcTime> {
      if (facility.name.str() == "brno")
        return clock_.utc() + std::chrono::minutes(num_looks++ == 0 ? 300 : 20);
      if (!is_readable) throw Error(ErrorKind::kIo, "the key file cannot be read");
      return std::nullopt;
    };
    OpenedRun opened(experiment, project_.path(), made);
    const auto file = project_.path() / (is_readable ? "log-1" : "log-2");
    const auto warns = [&] {
      const std::string text = read_file(file, 1 << 20);
      return text.find("a certificate expires soon") != std::string::npos &&
             text.find("\"facility\":\"brno\"") != std::string::npos;
    };
    log::set_file(file);
    {
      const std::jthread thread = upkeep::start_credential_watch(opened.context);
      EXPECT_TRUE(await(warns));
    }
    log::set_file({});
  }
}

TEST_F(InProcessFederation, ThePurgePolicyOfOneFacilitySufficesForItsFiles) {
  project_.set_rounds(1);
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 1);
  config::Experiment experiment = config::load_experiment(project_.path());
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(48);
  const auto is_young = [&](const std::string& name) {
    return std::filesystem::last_write_time(facility_folder(name) / "state") >
           old + std::chrono::hours(24);
  };
  for (config::Facility& facility : experiment.facilities) {
    if (facility.name.str() == "brno") facility.purge_after = seconds(1);
    const auto file = facility_folder(facility.name.str()) / "state";
    std::ofstream(file) << "{}";
    std::filesystem::last_write_time(file, old);
  }
  std::atomic<int> calls_of_alba = 0;
  watch("alba", [&](const std::string&, const RemotePath&) { ++calls_of_alba; });
  facility::Services made = services();
  OpenedRun opened(experiment, project_.path(), made);
  const std::jthread thread = upkeep::start_purge_guard(opened.context);
  EXPECT_TRUE(await([&] { return is_young("brno"); }, seconds(60)));
  EXPECT_FALSE(is_young("alba")) << "no site removes its files";
  EXPECT_EQ(calls_of_alba, 0) << "brno's files are at brno";
}

}  // namespace
}  // namespace xffl::test
