// Events of runs that take weeks: sites purge files, old rounds are removed, jobs print secrets,
// stored updates are damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "e2e/in_process.h"
#include "support/await.h"
#include "support/thrown.h"
#include "xffl/base/file.h"

namespace xffl::test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// The link drops once, at a removal of `round`.
WatchedSession::Before drop_at_removal(const std::string& round, std::atomic<bool>& failed) {
  return [round, &failed](const std::string& operation, const RemotePath& path) {
    if (operation == "remove_tree" && path.filename() == round && !failed.exchange(true))
      throw Error(ErrorKind::kRemote, "the link is down");
  };
}

// The cleaner retries the removals at a facility that was unreachable: brno at its first removal,
// alba after a success. At alba each removal begins ahead of the next one.
TEST_F(InProcessFederation, FailedRemovalsAreRetriedAfterTheNextRound) {
  project_.set_policy("{on_missing: wait, keep_rounds: 1, poll_interval: 20ms}");
  project_.set_rounds(4);
  project_.write_config();
  std::atomic<bool> failed_first{false}, failed_second{false};
  watch("brno", drop_at_removal("r0001", failed_first));
  watch("alba", [&, drop = drop_at_removal("r0002", failed_second)](const std::string& operation,
                                                                    const RemotePath& path) {
    drop(operation, path);
    const auto is_in = [&](const char* folder) {
      return path.str().find(folder) != std::string::npos;
    };
    if (is_in("/r0003/")) {
      EXPECT_TRUE(await([&] { return names_in(facility_folder("alba"), "r0001").empty(); }));
    }
    if (is_in("/r0004/")) {
      EXPECT_TRUE(await([&] { return failed_second.load(); }));
    }
  });
  EXPECT_EQ(run().rounds_published, 4);
  EXPECT_TRUE(failed_first);
  EXPECT_TRUE(failed_second);
  for (const char* name : {"alba", "brno"}) {
    const auto folder = facility_folder(name);
    EXPECT_THAT(names_in(folder, "r0"), testing::ElementsAre("r0004")) << name;
    EXPECT_EQ(names_in(folder / "models", "").size(), 1u) << name;
  }
}

TEST_F(InProcessFederation, AFailedRemovalAfterTheLastRoundIsRetriedAtTheEnd) {
  project_.set_policy("{on_missing: wait, keep_rounds: 1, poll_interval: 20ms}");
  project_.set_rounds(2);
  project_.write_config();
  std::atomic<bool> failed{false};
  watch("brno", drop_at_removal("r0001", failed));
  EXPECT_EQ(run().rounds_published, 2);
  EXPECT_TRUE(failed);
  EXPECT_THAT(names_in(facility_folder("brno"), "r0"), testing::ElementsAre("r0002"));
}

// The newest models and updates stay on this machine, and the run continues after a restart.
TEST_F(InProcessFederation, OldModelsAndUpdatesLeaveTheCoordinator) {
  project_.set_policy("{on_missing: wait, keep_updates: 1, keep_models: 2, poll_interval: 20ms}");
  project_.set_rounds(5);
  project_.write_config();
  watch("brno", [this](const std::string& operation, const RemotePath&) {
    if (operation == "make_dirs" && project_.count_events("published") == 3) stop_.request_stop();
  });
  EXPECT_EQ(error_of([&] { run(); }).kind(), ErrorKind::kCancelled);
  before_.clear();
  stop_ = std::stop_source();
  EXPECT_EQ(run().rounds_published, 5);
  std::vector<int> models, updates;
  for (int round = 0; round <= 5; ++round) {
    const auto folder = project_.run_folder() / ("r000" + std::to_string(round));
    if (std::filesystem::exists(folder / "global/model.safetensors")) models.push_back(round);
    for (const char* name : {"alba", "brno"})
      if (std::filesystem::exists(folder / name / "update")) updates.push_back(round);
    EXPECT_EQ(std::filesystem::exists(folder / "alba/report.json"), round > 0) << round;
  }
  EXPECT_THAT(models, testing::ElementsAre(0, 4, 5));
  EXPECT_THAT(updates, testing::ElementsAre(5, 5));
}

// The facility's disk fails while the coordinator fetches an accepted update again.
TEST_F(InProcessFederation, FetchIsRetriedAfterAFailureOfTheFacility) {
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  std::jthread helper([&] {
    project_.await_events("update_accepted", 1);
    stop_.request_stop();
  });
  EXPECT_EQ(error_of([&] { run(); }).kind(), ErrorKind::kCancelled);
  helper.join();
  const auto update = project_.run_folder() / "r0001/alba/update/model.safetensors";
  std::filesystem::resize_file(update, std::filesystem::file_size(update) - 1);
  const auto fail = times(2, ErrorKind::kIo, "Input/output error");
  watch("alba", [fail](const std::string& operation, const RemotePath&) {
    if (operation == "read") fail();
  });
  clock_.longest_sleep = milliseconds(50);
  stop_ = std::stop_source();
  project_.release();
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(project_.count_events("update_lost"), 0);
  EXPECT_EQ(project_.trainings().size(), 2u) << "trained again";
}

TEST_F(InProcessFederation, WarnsOfALostOptimizerState) {
  project_.set_rounds(1);
  project_.set_fault("brno", "forgets");
  project_.write_config();
  const auto file = project_.path() / "log";
  log::set_file(file);
  EXPECT_EQ(run().rounds_published, 1);
  log::set_file({});
  const std::string warnings = read_file(file, 1 << 20);
  EXPECT_THAT(warnings, HasSubstr("optimizer state was lost"));
  EXPECT_THAT(warnings, HasSubstr("state.json is gone"));
}

// The journal has the last output of a failed job.
TEST_F(InProcessFederation, AKeyInAJobsOutputIsNotStored) {
  project_.set_rounds(1);
  project_.set_fault("brno", "leak");
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 1);
  int seen = 0;
  for (const history::StoredEvent& event : project_.events()) {
    EXPECT_THAT(event.payload, testing::Not(HasSubstr("QQQQQQQQ")));
    seen += event.payload.find("no such key") != std::string::npos;
  }
  EXPECT_EQ(seen, 1) << "the test tells nothing";
}

// The run completes after the last round's clean-up; a stop during the clean-up interrupts the run.
TEST_F(InProcessFederation, AStopInterruptsTheLastRemoval) {
  project_.set_policy("{on_missing: wait, keep_rounds: 1, poll_interval: 20ms}");
  project_.write_config();
  for (const char* name : {"alba", "brno"})
    watch(name, [](const std::string&, const RemotePath&) {});
  removal_ = [&](const std::stop_token&) {
    if (project_.count_events("published") == 3) stop_.request_stop();
  };
  EXPECT_EQ(error_of([&] { run(); }).kind(), ErrorKind::kCancelled);
  EXPECT_EQ(project_.count_events("published"), 3);
  EXPECT_EQ(project_.count_events("run_completed"), 0);
  removal_ = {};
  stop_ = std::stop_source();
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_EQ(project_.count_events("run_completed"), 1);
  for (const char* name : {"alba", "brno"})
    EXPECT_THAT(names_in(facility_folder(name), "r0"), testing::ElementsAre("r0003")) << name;
}

// Removals take long on a parallel file system; cancellations and the messages of a failed round do
// not wait for them.
TEST_F(InProcessFederation, RoundsDoNotWaitForRemovals) {
  project_.set_policy("{on_missing: wait, keep_rounds: 1, poll_interval: 20ms}");
  project_.set_hold();
  project_.write_config();
  for (const char* name : {"alba", "brno"}) {
    watch(name, [](const std::string&, const RemotePath&) {});
    project_.hold(name, 3);
  }
  project_.release();
  std::atomic<bool> removing{false}, waited_for{false};
  removal_ = [&](const std::stop_token& stop) {
    if (!stop.stop_possible()) return;  // not a removal by the cleaner
    removing = true;
    if (!SystemClock().sleep(seconds(30), stop))
      throw Error(ErrorKind::kCancelled, "stopped in the middle");
    waited_for = true;
  };
  std::jthread helper([&] {
    project_.await_events("submitted", 6);
    for (int i = 0; i < 1000 && !removing; ++i) std::this_thread::sleep_for(milliseconds(20));
    history::leave_request(
        {project_.path() / "runs", RunName("0001")},
        {.kind = history::Request::Kind::kCancel, .facilities = {}, .reason = {}});
  });
  const Error error = error_of([&] { run(); });
  EXPECT_EQ(error.kind(), ErrorKind::kFailed) << error.what();
  EXPECT_TRUE(removing) << "the test tells nothing";
  EXPECT_FALSE(waited_for);
  EXPECT_EQ(project_.count_events("run_cancelled"), 1);
}

class Queues : public InProcessFederation, public testing::WithParamInterface<submit::JobState> {};

// The site removes the model of a job that is pending or held for long.
TEST_P(Queues, APurgedModelIsPushedAgain) {
  brno_waiting_ = GetParam();
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  const auto started =
      project_.path() / "began";  // made by the trainer; the scheduler's answers still say pending
  change_ = [&](config::Experiment& experiment) {
    for (config::Facility& facility : experiment.facilities) {
      facility.purge_after = seconds(1);
      if (facility.name.str() == "brno")
        facility.environment.push_back("export XFFL_FAKE_UNPACKED='" + started.string() + "'");
    }
  };
  bool removed = false, back = false;  // written by brno's thread
  const auto until = std::chrono::steady_clock::now() + seconds(120);
  brno_waits_ = [&] {
    if (!std::filesystem::exists(started)) return true;
    const auto models = facility_folder("brno") / "models";
    const auto model = models / names_in(models, "").at(0) / "model.safetensors";
    if (!removed) return removed = std::filesystem::remove(model);
    back = back || std::filesystem::exists(model);
    if (back || std::chrono::steady_clock::now() > until)
      project_.release("brno");  // the queue ends
    return true;
  };
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_TRUE(back);
  EXPECT_EQ(project_.count_events("attempt_failed"), 0);
  EXPECT_EQ(project_.trainings().size(), 2u);
}
INSTANTIATE_TEST_SUITE_P(All, Queues,
                         testing::Values(submit::JobState::kPending, submit::JobState::kHeld),
                         [](const auto& each) {
                           return std::string(submit::to_string(each.param));
                         });

// alba has finished the round and brno's job waits for weeks: alba's files for the next job must
// outlive the site's purge.
TEST_F(InProcessFederation, FilesOfAWaitingFacilityAreTouched) {
  namespace fs = std::filesystem;
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  change_ = [](config::Experiment& experiment) {
    for (config::Facility& facility : experiment.facilities)
      facility.purge_after = facility.name.str() == "alba" ? seconds(2) : hours(24 * 90);
  };
  brno_waiting_ = submit::JobState::kHeld;
  std::vector<fs::path> files;  // written by brno's thread, like the next three
  const auto old = fs::file_time_type::clock::now() - hours(24 * 30);
  bool young = false;
  const auto until = std::chrono::steady_clock::now() + seconds(120);
  brno_waits_ = [&] {
    if (files.empty() && project_.count_events("update_accepted") == 1) {
      const fs::path folder = facility_folder("alba");
      fs::create_directories(folder / "optimizer/r0001-x");
      std::ofstream(folder / "optimizer/r0001-x/state.json") << "{}";
      const auto model = folder / "models" / names_in(folder / "models", "").at(0);
      files = {folder / "optimizer/r0001-x/state.json", model / "model.safetensors"};
      for (const fs::path& file : files) fs::last_write_time(file, old);
    }
    young = !files.empty() && std::all_of(files.begin(), files.end(), [&](const fs::path& file) {
      return fs::last_write_time(file) > old + hours(24);
    });
    if (young || std::chrono::steady_clock::now() > until) project_.release("brno");
    return true;
  };
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_TRUE(young) << "the optimizer's state would be gone";
}

}  // namespace
}  // namespace xffl::test
