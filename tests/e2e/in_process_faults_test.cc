// Federations in this process whose links drop, whose schedulers forget a cancellation, and whose
// settings change while jobs wait. The trainings are those of xffl-fake-trainer.
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "e2e/in_process.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/remote/stop_scope.h"
#include "xffl/submit/template.h"

namespace xffl::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The link drops every few megabytes. Each attempt continues the file of the one before.
TEST_F(InProcessFederation, RepeatedConnectionDropsWithProgressAreNoOutage) {
  project_.set_rounds(1);
  project_.set_model_rows(2'500'000);  // 40 MB
  project_.write_config();
  clock_.longest_sleep = milliseconds(20);
  int reads = 0, drops = 0;  // written by brno's thread
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (operation != "read" || path.filename() != "model.safetensors" || ++reads % 2 != 0) return;
    ++drops;
    throw Error(ErrorKind::kRemote, "the link dropped");
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(drops, 4);
  EXPECT_LT(clock_.longest_asked, std::chrono::nanoseconds(seconds(6)).count());
  EXPECT_EQ(project_.trainings().size(), 2u);
}

// The bytes of an earlier try are no progress of the later ones, which reach nothing.
TEST_F(InProcessFederation, ADeadLinkAfterATransferWithProgressIsAnOutage) {
  project_.set_policy(
      "{on_missing: skip, quorum: 1, quorum_grace: 0s, deadline: 2m, max_outage: 1s, "
      "poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.set_model_rows(2'500'000);  // 40 MB
  project_.write_config();
  clock_.longest_sleep = milliseconds(20);
  std::atomic<int> reads = 0;
  std::atomic<bool> dead = false;
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (!dead) {
      if (operation != "read" || path.filename() != "model.safetensors" || ++reads % 2 != 0) return;
      dead = reads >= 4;  // in the second try of the fetch
    }
    throw Error(ErrorKind::kRemote, "the link dropped");
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_TRUE(dead);
  const history::RunState state = project_.history();
  const std::string missing =
      state.rounds.at(1).facilities.at(FacilityName("brno")).missing.value_or("");
  EXPECT_TRUE(missing.starts_with("not reachable for 1 s")) << missing;
}

// The round would wait for the metrics of a facility that answers nothing.
TEST_F(InProcessFederation, AFacilityThatIsGivenUpDoesNotCountAsReachableAgain) {
  const std::filesystem::path file = project_.path() / "log";
  project_.set_policy(
      "{on_missing: skip, quorum: 1, quorum_grace: 0s, deadline: 2m, max_outage: 1s, "
      "poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.write_config();
  clock_.longest_sleep = milliseconds(20);
  std::atomic<bool> dead = false, asked_for_metrics = false;
  watch("brno", [&](const std::string&, const RemotePath& path) {
    if (path.filename() == "report.json") dead = true;
    if (!dead) return;
    if (path.filename() == "metrics.jsonl") asked_for_metrics = true;
    throw Error(ErrorKind::kRemote, "the link is down");
  });
  log::set_file(file);
  EXPECT_EQ(run().rounds_published, 1);
  log::set_file({});
  const std::string text = read_file(file, 64 << 20);
  EXPECT_NE(text.find("facility does not answer as expected"), std::string::npos);
  EXPECT_EQ(text.find("facility reachable again"), std::string::npos) << text;
  EXPECT_FALSE(asked_for_metrics);
}

// Accepts the first cancellation and forgets it, as a controller that dies before it acts.
class ForgetfulScheduler final : public ForwardingScheduler {
 public:
  using ForwardingScheduler::ForwardingScheduler;
  void cancel(const submit::SubmittedJob& job, std::stop_token stop) override {
    if (std::exchange(cancelled, job)) ForwardingScheduler::cancel(job, stop);
  }
  std::optional<submit::SubmittedJob> cancelled;
};

TEST_F(InProcessFederation, AForgottenCancellationIsRepeated) {
  project_.set_policy("{on_missing: skip, quorum: 1, deadline: 8s, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  std::shared_ptr<ForgetfulScheduler> scheduler;
  brno_scheduler_ = [&](Scheduler inner) {
    if (!scheduler) scheduler = std::make_shared<ForgetfulScheduler>(std::move(inner));
    return scheduler;
  };
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(project_.count_events("cancel_confirmed"), 1);
  ASSERT_TRUE(scheduler && scheduler->cancelled);
  const submit::SubmittedJob job = *scheduler->cancelled;
  EXPECT_NE(scheduler->query(std::span(&job, 1), {}).at(job.id).state, submit::JobState::kRunning);
  project_.release("brno");
}

// Does not answer the first search.
class SilentSearch final : public ForwardingScheduler {
 public:
  using ForwardingScheduler::ForwardingScheduler;
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token stop) override {
    if (std::exchange(answers_, true)) return ForwardingScheduler::find(request, stop);
    while (!stop.stop_requested()) std::this_thread::sleep_for(milliseconds(10));
    throw Error(ErrorKind::kCancelled, "stopped");
  }

 private:
  bool answers_ = false;
};

// The round would otherwise end by the sum of their limits after its deadline.
TEST_F(InProcessFederation, TheStepsOfACleanUpShareTheirLimitOf8Seconds) {
  project_.set_policy(
      "{on_missing: skip, quorum: 1, quorum_grace: 1s, deadline: 1h, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  bool fenced = false;
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (operation == "make_dirs" && path.str().ends_with("claim/fenced") &&
        !std::exchange(fenced, true))
      std::this_thread::sleep_for(seconds(6));
  });
  std::shared_ptr<SilentSearch> scheduler;
  brno_scheduler_ = [&](Scheduler inner) {
    if (!scheduler) scheduler = std::make_shared<SilentSearch>(std::move(inner));
    return scheduler;
  };
  const std::jthread operator_thread([&] {
    project_.await_events("submitted", 2);
    project_.release("alba");
  });
  EXPECT_EQ(run().rounds_published, 1);
  std::map<std::string, Clock::UtcTime> times;
  for (const history::StoredEvent& event : project_.events())
    if (event.facility == "brno" && event.round == 1)
      times[event.kind] = parse_utc(event.time_utc).value();
  EXPECT_TRUE(fenced);
  EXPECT_LT(times.at("facility_missing") - times.at("cancel_intended"), seconds(11));
  project_.release("brno");
}

// From the fetch on, brno answers nothing: the fetch, the end of the attempt, the job's output and
// its times each use their whole limit.
TEST_F(InProcessFederation, AllStepsAfterTheDeadlineTogetherEndWithin20Seconds) {
  project_.set_policy(
      "{on_missing: skip, quorum: 1, quorum_grace: 0s, deadline: 5s, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.write_config();
  std::atomic<bool> silent = false;
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (operation == "read" && path.str().find("/out/update/") != std::string::npos) silent = true;
    if (!silent) return;
    const std::stop_token stop = remote::StopScope::current();
    for (int i = 0; i < 6000 && !stop.stop_requested(); ++i)
      std::this_thread::sleep_for(milliseconds(10));
    throw Error(ErrorKind::kCancelled, "stopped");
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_TRUE(silent);
  std::optional<Clock::UtcTime> submitted, missing, published;
  for (const history::StoredEvent& event : project_.events()) {
    const Clock::UtcTime time = parse_utc(event.time_utc).value();
    if (event.kind == "submitted" && !submitted) submitted = time;
    if (event.kind == "facility_missing") missing = time;
    if (event.kind == "published") published = time;
  }
  ASSERT_TRUE(submitted && missing && published);
  EXPECT_GT(*missing - *submitted, seconds(5 + 8)) << "the fetch had its time";
  EXPECT_LT(*published - *submitted, seconds(5 + 20));
}

// The fetch gets 8 s after the deadline, more than other actions.
TEST_F(InProcessFederation, AFetchAtTheDeadlineIsNotCutAtOnce) {
  project_.set_policy(
      "{on_missing: skip, quorum: 1, quorum_grace: 0s, deadline: 5s, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.write_config();
  std::atomic<bool> slow = false;
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (operation == "read" && path.str().find("/out/update/") != std::string::npos &&
        !slow.exchange(true))
      std::this_thread::sleep_for(seconds(7));
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_TRUE(slow);
  EXPECT_EQ(project_.count_events("update_accepted"), 2);
  EXPECT_EQ(project_.count_events("attempt_failed"), 0);
}

// All updates are here; only brno's metrics do not come.
TEST_F(InProcessFederation, ARoundWaitsTenSecondsForMetrics) {
  project_.set_rounds(1);
  project_.write_config();
  std::atomic<bool> silent = false;
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (operation != "read" || path.filename() != "metrics.jsonl" || silent.exchange(true)) return;
    const std::stop_token stop = remote::StopScope::current();
    for (int i = 0; i < 3000 && !stop.stop_requested(); ++i)
      std::this_thread::sleep_for(milliseconds(10));
    throw Error(ErrorKind::kCancelled, "stopped while it read");
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_TRUE(silent);
  std::map<std::string, Clock::UtcTime> times;  // the last update's, among others
  for (const history::StoredEvent& event : project_.events())
    if (event.round == 1) times[event.kind] = parse_utc(event.time_utc).value();
  EXPECT_LT(times.at("published") - times.at("update_accepted"), seconds(20));
  EXPECT_EQ(project_.count_events("facility_missing"), 0);
}

// The space suffices for the pushed model, but not for the job's update.
TEST_F(InProcessFederation, WarnsOfMissingSpaceBeforeAJob) {
  const std::filesystem::path file = project_.path() / "log";
  project_.set_rounds(1);
  project_.set_model_rows(2'500'000);  // 40 MB
  project_.write_config();
  watch("brno", [](const std::string&, const RemotePath&) {});
  free_ = [](const RemotePath& folder) {
    return folder.filename() == "brno" ? 45'000'000 : uint64_t{1} << 40;
  };
  log::set_file(file);
  EXPECT_EQ(run().rounds_published, 1);
  log::set_file({});
  std::vector<std::string> logged;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.find("less space") != std::string::npos || line.find("submitted") != std::string::npos)
      if (line.find("\"brno\"") != std::string::npos) logged.push_back(line);
  ASSERT_EQ(logged.size(), 2u);
  EXPECT_NE(logged[0].find("\"free_megabytes\":45"), std::string::npos) << logged[0];
  EXPECT_NE(logged[0].find("\"needed_megabytes\":48"), std::string::npos) << logged[0];
  EXPECT_NE(logged[1].find("job submitted"), std::string::npos) << logged[1];
}

// Without the intent on record, a killed coordinator would not search for the job, and no budget
// would count it.
TEST_F(InProcessFederation, AJobWhoseTemplateCameBackHasItsIntentOnRecord) {
  const std::filesystem::path own = project_.path() / "own.sh", file = project_.path() / "log";
  const std::string text(submit::shipped_template("process"));
  project_.set_rounds(1);
  project_.write_config();
  write_file_atomic(own, text);
  change_ = [&](config::Experiment& experiment) {
    for (config::Facility& facility : experiment.facilities)
      if (facility.name.str() == "brno") facility.template_file = own;
  };
  clock_.longest_sleep = milliseconds(20);
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (operation == "rename" && path.str().ends_with("/a1/job.json")) std::filesystem::remove(own);
  });
  log::set_file(file);
  {
    const std::jthread user([&] {
      EXPECT_TRUE(await([&] {
        return read_file(file, 64 << 20).find("script cannot be made") != std::string::npos;
      }));
      write_file_atomic(own, text);
    });
    EXPECT_EQ(run().rounds_published, 1);
  }
  log::set_file({});
  std::vector<std::string> kinds;
  for (const history::StoredEvent& event : project_.events())
    if (event.facility == "brno" && (event.kind == "submit_intended" || event.kind == "submitted"))
      kinds.push_back(event.kind);
  EXPECT_EQ(kinds, (std::vector<std::string>{"submit_intended", "submitted"}));
}

// A job waits whose job.json names the whole model; then the settings change to packed models, and
// the site removes the model.
TEST_F(InProcessFederation, AModelPushedAgainMatchesItsJobFile) {
  project_.set_rounds(2);
  project_.set_model_rows(20'000);
  project_.set_hold();
  project_.write_config();
  project_.release();
  project_.hold("brno", 2);
  config::Facility* brno = nullptr;
  change_ = [&](config::Experiment& experiment) {
    for (config::Facility& facility : experiment.facilities) {
      facility.access = config::AccessKind::kSsh;  // local facilities get no packed models
      facility.transfer.pack = config::PackModels::kNever;
      facility.purge_after = seconds(1);
      facility.environment.emplace_back("touch begun");  // in the attempt's folder
      if (facility.name.str() == "brno") brno = &facility;
    }
  };
  std::string first;  // the model of the first round
  bool removed = false, back = false;
  int polls = 0;
  constexpr int kManyPolls = 1000;
  brno_waits_ = [&] {  // called by brno's thread
    const auto models = facility_folder("brno") / "models";
    if (first.empty()) first = names_in(models, "").at(0);
    if (names_in(facility_folder("brno"), "r0002").empty()) return false;
    // The job has compared its model and is held; it pends only in the scheduler's answers.
    if (!std::filesystem::exists(facility_folder("brno") / "r0002/a1/begun"))
      return ++polls <= kManyPolls;
    std::filesystem::path model;
    for (const std::string& name : names_in(models, ""))
      if (name != first) model = models / name / "model.safetensors";
    brno->transfer.pack = config::PackModels::kAlways;
    if (!removed) return removed = std::filesystem::remove(model);
    back = back || std::filesystem::exists(model);
    const bool free = back || ++polls > kManyPolls;
    if (free) project_.release("brno", 2);
    return !free;
  };
  EXPECT_EQ(run().rounds_published, 2);
  EXPECT_TRUE(back);
  EXPECT_EQ(project_.count_events("attempt_failed"), 0);
  EXPECT_EQ(project_.trainings().size(), 4u);
}

}  // namespace
}  // namespace xffl::test
