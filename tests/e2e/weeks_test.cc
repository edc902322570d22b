// What weeks bring: sites that purge, old rounds to remove, jobs that leave secrets, updates that
// are damaged here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "e2e/world.h"
#include "support/thrown.h"
#include "xffl/base/file.h"

namespace xffl::test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// A facility that is away when old rounds are removed does not keep them for ever.
TEST_F(World, FailedRemovalsAreRetriedAfterTheNextRound) {
  project_.set_policy("{on_missing: wait, keep_rounds: 1, poll_interval: 20ms}");
  project_.set_rounds(4);
  project_.write_config();
  const auto fail = times(1, ErrorKind::kRemote, "the link is down");
  watch("brno", [fail](const std::string& operation, const RemotePath&) {
    if (operation == "list" || operation == "remove_tree") fail();
  });
  EXPECT_EQ(run().rounds_published, 4);
  for (const char* name : {"alba", "brno"}) {
    const auto folder = facility_folder(name);
    EXPECT_THAT(names_in(folder, "r0"), testing::ElementsAre("r0004")) << name;
    EXPECT_EQ(names_in(folder / "models", "").size(), 1u) << name;
  }
}

// A server's disk fails for a while, when an accepted update is to be had again.
TEST_F(World, FetchIsRetriedAfterAFailureOfTheFacility) {
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  std::jthread person([&] {
    project_.await_events("update_accepted", 1);
    stop_.request_stop();
  });
  EXPECT_EQ(error_of([&] { run(); }).kind(), ErrorKind::kCancelled);
  person.join();
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

TEST_F(World, WarnsOfALostOptimizerState) {
  project_.set_rounds(1);
  project_.set_fault("brno", "forgets");
  project_.write_config();
  const auto file = project_.path() / "log";
  log::set_file(file);
  EXPECT_EQ(run().rounds_published, 1);
  log::set_file({});
  const std::string told = read_file(file, 1 << 20);
  EXPECT_THAT(told, HasSubstr("optimizer state was lost"));
  EXPECT_THAT(told, HasSubstr("state.json is gone"));
}

// What a job printed last before it died is journalled.
TEST_F(World, AKeyInAJobsOutputIsNotStored) {
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

// The end of the last round's cleaning is the end of the run, and a stop before it is a stop.
TEST_F(World, AStopInterruptsTheLastRemoval) {
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

// A parallel file system takes its time; a person who cancels, or reads why a round failed, does
// not wait for it.
TEST_F(World, RoundsDoNotWaitForRemovals) {
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
    if (!stop.stop_possible()) return;  // a small one, of something else
    removing = true;
    if (!SystemClock().sleep(seconds(30), stop))
      throw Error(ErrorKind::kCancelled, "stopped in the middle");
    waited_for = true;
  };
  std::jthread person([&] {
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

class Queues : public World, public testing::WithParamInterface<submit::JobState> {};

// A job waits in the queue, or is held, for so long that the site removes its model.
TEST_P(Queues, APurgedModelIsPushedAgain) {
  brno_waiting_ = GetParam();
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  const auto began = project_.path() / "began";  // its trainer; the queue is only said to be long
  change_ = [&](config::Experiment& experiment) {
    for (config::Facility& facility : experiment.facilities) {
      facility.purge_after = seconds(1);
      if (facility.name.str() == "brno")
        facility.environment.push_back("export XFFL_FAKE_UNPACKED='" + began.string() + "'");
    }
  };
  bool removed = false, back = false;  // of brno's thread
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  brno_waits_ = [&] {
    if (!std::filesystem::exists(began)) return true;
    const auto models = facility_folder("brno") / "models";
    const auto model = models / names_in(models, "").at(0) / "model.safetensors";
    if (!removed) return removed = std::filesystem::remove(model);
    back = back || std::filesystem::exists(model);
    if (back || std::chrono::steady_clock::now() > until) project_.release("brno");  // nodes
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

// What its next job needs lies at a facility that is done while another's job waits for weeks.
TEST_F(World, FilesOfAWaitingFacilityAreTouched) {
  namespace fs = std::filesystem;
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  change_ = [](config::Experiment& experiment) {
    for (config::Facility& facility : experiment.facilities) facility.purge_after = seconds(2);
  };
  brno_waiting_ = submit::JobState::kHeld;
  std::vector<fs::path> files;  // of brno's thread, as all of these
  const auto old = fs::file_time_type::clock::now() - hours(24 * 30);
  bool young = false;
  const auto until = std::chrono::steady_clock::now() + seconds(20);
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
