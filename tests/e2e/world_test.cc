// Federations whose world has other objects: facilities that answer wrongly, clocks that jump. In
// this process, with the real trainings of xffl-fake-trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "e2e/project.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/journal/journal.h"
#include "xffl/round/federation.h"

namespace xffl::test {
namespace {

using remote::CommandResult;
using remote::FileInfo;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

// This machine as a facility, where `before` sees each operation first and may throw instead.
class WatchedSession final : public remote::Session {
 public:
  using Before = std::function<void(const std::string& operation, const RemotePath& path)>;
  explicit WatchedSession(Before before) : before_(std::move(before)) {}

  CommandResult run(const std::vector<std::string>& argv, const std::string& text,
                    milliseconds timeout, std::stop_token stop) override {
    before_("run", RemotePath("/"));
    return inner_->run(argv, text, timeout, stop);
  }
  std::optional<FileInfo> stat(const RemotePath& path) override {
    before_("stat", path);
    return inner_->stat(path);
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    before_("read", path);
    return inner_->read(path, offset, out);
  }
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    before_("write", path);
    inner_->write(path, offset, bytes);
  }
  void sync(const RemotePath& path) override { inner_->sync(path); }
  void rename(const RemotePath& from, const RemotePath& to) override {
    before_("rename", to);
    inner_->rename(from, to);
  }
  std::vector<std::string> list(const RemotePath& folder) override {
    before_("list", folder);
    return inner_->list(folder);
  }
  void make_dirs(const RemotePath& folder) override {
    before_("make_dirs", folder);
    inner_->make_dirs(folder);
  }
  void remove_tree(const RemotePath& path) override {
    before_("remove_tree", path);
    inner_->remove_tree(path);
  }

 private:
  const Before before_;
  const std::unique_ptr<remote::Session> inner_ = remote::make_local_session();
};

// Real waits, and a wall clock that the test sets.
class JumpingClock final : public Clock {
 public:
  MonotonicTime monotonic() const override { return real_.monotonic(); }
  UtcTime utc() const override { return real_.utc() + hours(ahead_hours); }
  bool sleep(std::chrono::nanoseconds duration, std::stop_token stop) override {
    longest_asked =
        std::max(longest_asked.load(), duration.count());  // near enough, of several threads
    // What waits for minutes in earnest need not do so here.
    return real_.sleep(std::min<std::chrono::nanoseconds>(duration, longest_sleep), stop);
  }
  std::atomic<int> ahead_hours{0};
  std::chrono::nanoseconds longest_sleep = hours(1);
  std::atomic<int64_t> longest_asked{0};  // ns

 private:
  SystemClock real_;
};

// Its jobs wait in a queue for as long as `waits` says.
class QueuedScheduler final : public submit::Scheduler {
 public:
  QueuedScheduler(std::shared_ptr<submit::Scheduler> inner, std::function<bool()> waits,
                  milliseconds settle_time)
      : inner_(std::move(inner)), waits_(std::move(waits)), settle_time_(settle_time) {}

  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    return inner_->submit(request, stop);
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token stop) override {
    return inner_->find(request, stop);
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token stop) override {
    const bool waits = waits_();
    auto states = inner_->query(jobs, stop);
    if (waits)
      for (auto& [id, status] : states) status.state = submit::JobState::kPending;
    return states;
  }
  void cancel(const submit::SubmittedJob& job, std::stop_token stop) override {
    inner_->cancel(job, stop);
  }
  milliseconds settle_time() const override { return settle_time_; }

 private:
  const std::shared_ptr<submit::Scheduler> inner_;
  const std::function<bool()> waits_;
  const milliseconds settle_time_;
};

class World : public testing::Test {
 protected:
  World() { log::set_console_level(log::Level::kOff); }

  // What `facility`'s session does before each operation.
  void watch(const std::string& facility, WatchedSession::Before before) {
    before_[facility] = std::move(before);
  }
  round::World world() {
    round::World made = round::make_world(clock_, project_.path());
    made.programs.xffl = std::filesystem::path(XFFL_BINARY_DIR) / "bin/xffl";
    const auto connect = [this](const config::Facility& facility) {
      const auto before = before_.find(facility.name.str());
      return std::shared_ptr<remote::Session>(
          before == before_.end() ? remote::make_local_session()
                                  : std::make_unique<WatchedSession>(before->second));
    };
    made.connect = made.connect_transfer = connect;
    if (brno_waits_)
      made.scheduler = [inner = made.scheduler, this](const config::Facility& facility,
                                                      std::shared_ptr<remote::Session> session) {
        auto scheduler = inner(facility, std::move(session));
        if (facility.name.str() == "brno")
          scheduler =
              std::make_shared<QueuedScheduler>(std::move(scheduler), brno_waits_, brno_settles_);
        return scheduler;
      };
    return made;
  }
  round::Outcome run() {
    round::World made = world();
    config::Experiment experiment = config::load_experiment(project_.path());
    if (change_) change_(experiment);
    return round::run_federation(experiment, {project_.path() / "runs", RunName("0001")}, made,
                                 stop_.get_token());
  }

  // The run's only folder there.
  std::filesystem::path facility_folder(const std::string& name) const {
    for (const auto& entry : std::filesystem::directory_iterator(project_.path() / "work" / "test"))
      if (std::filesystem::exists(entry.path() / name)) return entry.path() / name;
    ADD_FAILURE() << "no folder of " << name;
    return {};
  }
  static std::vector<std::string> names_in(const std::filesystem::path& folder,
                                           const std::string& prefix) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().filename().string().starts_with(prefix))
        names.push_back(entry.path().filename());
    return names;
  }

  Project project_;
  JumpingClock clock_;
  std::stop_source stop_;
  std::map<std::string, WatchedSession::Before> before_;
  std::function<bool()> brno_waits_;  // whether its jobs still wait for nodes
  milliseconds brno_settles_{300};
  std::function<void(config::Experiment&)> change_;
};

// A set number of times; then all is well.
auto times(int count, ErrorKind kind, const std::string& message) {
  return [left = std::make_shared<std::atomic<int>>(count), kind, message] {
    if ((*left)-- > 0) throw Error(kind, message);
  };
}

struct WrongAnswer {
  const char* operation;
  ErrorKind kind;
};
class WrongAnswers : public World, public testing::WithParamInterface<WrongAnswer> {};

// A server that speaks nonsense, a file system that is not mounted for a while, a missing command:
// none of it is an error of the federation.
TEST_P(WrongAnswers, OfOneFacilityAreRetriedThere) {
  clock_.longest_sleep = milliseconds(50);
  const auto fail = times(2, GetParam().kind, "what answers is no file server");
  watch("brno", [fail](const std::string& operation, const RemotePath&) {
    if (operation == GetParam().operation) fail();
  });
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_EQ(project_.trainings().size(), 6u);
}
INSTANTIATE_TEST_SUITE_P(All, WrongAnswers,
                         testing::Values(WrongAnswer{"make_dirs", ErrorKind::kNotFound},
                                         WrongAnswer{"write", ErrorKind::kCorrupt},
                                         WrongAnswer{"rename", ErrorKind::kUnsupported},
                                         WrongAnswer{"stat", ErrorKind::kCorrupt}),
                         [](const auto& each) { return std::string(each.param.operation); });

TEST_F(World, TextThatIsNotUtf8EndsNoRun) {
  clock_.longest_sleep = milliseconds(50);
  const auto fail = times(3, ErrorKind::kAuth, "welcome \xff\xed\xa0\x80");
  watch("brno", [fail](const std::string&, const RemotePath&) { fail(); });
  EXPECT_EQ(run().rounds_published, 3);
}

// Shared file systems: the report is there before what it names.
TEST_F(World, AnUpdateMayBeSeenLaterThanItsReport) {
  const auto fail = times(2, ErrorKind::kNotFound, "there is no such file");
  watch("brno", [fail](const std::string& operation, const RemotePath& path) {
    if (operation == "stat" && path.str().ends_with("out/update/manifest.json")) fail();
  });
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_EQ(project_.trainings().size(), 6u) << "trained again";
  EXPECT_EQ(project_.count_events("attempt_failed"), 0);
}

// A job that its round went on without ends with the run, though its facility could not be told
// then.
TEST_F(World, NoJobIsLeftBehind) {
  project_.set_policy("{on_missing: skip, quorum: 1, deadline: 3s, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  const auto fail = times(1, ErrorKind::kRemote, "the link is down");
  watch("brno", [fail](const std::string&, const RemotePath& path) {
    if (path.str().ends_with("claim/fenced")) fail();
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(project_.trainings(), std::vector<std::string>{"alba 1 1"});
  EXPECT_EQ(project_.count_events("cancel_intended"), 1);
  EXPECT_EQ(project_.count_events("cancel_confirmed"), 1);
}

TEST_F(World, ACompletedRunTakesNoOtherTraining) {
  project_.set_rounds(1);
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 1);
  project_.set_rounds(2);
  project_.write_config();
  const Error error = error_of([&] { run(); });
  EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  EXPECT_THAT(error.what(), HasSubstr("--new"));
  EXPECT_EQ(project_.trainings().size(), 2u);
}

// A facility that is away when old rounds are removed does not keep them for ever.
TEST_F(World, WhatCouldNotBeCleanedUpIsCleanedUpLater) {
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

// A job waits in the queue for so long that the site removes its model.
TEST_F(World, AModelThatASitePurgesMeanwhileIsSentAgain) {
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  change_ = [](config::Experiment& experiment) {
    for (config::Facility& facility : experiment.facilities) facility.purge_after = seconds(1);
  };
  bool removed = false, back = false;  // of brno's thread
  brno_waits_ = [&] {
    const auto models = facility_folder("brno") / "models";
    const auto model = models / names_in(models, "").at(0) / "model.safetensors";
    if (!removed) return removed = std::filesystem::remove(model);
    back = back || std::filesystem::exists(model);
    if (back) project_.release("brno");  // nodes are free
    return true;
  };
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_TRUE(back);
  EXPECT_EQ(project_.count_events("attempt_failed"), 0);
  EXPECT_EQ(project_.trainings().size(), 2u);
}

// Between a look for the report and the scheduler's answer there is time to report and to end.
TEST_F(World, AJobThatEndsWhileItsSchedulerIsAskedIsNotWaitedFor) {
  project_.set_rounds(1);
  project_.write_config();
  project_.set_hold();
  project_.release("alba");
  brno_settles_ = minutes(30);
  clock_.longest_sleep = milliseconds(50);
  brno_waits_ = [&] {
    project_.release("brno");
    const auto folder = facility_folder("brno");
    const auto reported = [&] {
      const auto rounds = names_in(folder, "r0001");
      return !rounds.empty() &&
             std::filesystem::exists(folder / rounds.at(0) / "a1/out/report.json");
    };
    for (int i = 0; i < 600 && !reported(); ++i) std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(reported()) << folder;
    std::this_thread::sleep_for(milliseconds(500));  // to end, too
    return false;
  };
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_LT(clock_.longest_asked, std::chrono::nanoseconds(minutes(20)).count());
}

// An administrator sets the clock right between a round's beginning and its first submission.
TEST_F(World, AWallClockThatJumpsBackEndsNoDeadline) {
  project_.set_policy("{on_missing: skip, quorum: 2, deadline: 2h, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.write_config();
  clock_.ahead_hours = 10;
  for (const char* name : {"alba", "brno"})
    watch(name, [&](const std::string&, const RemotePath&) { clock_.ahead_hours = 0; });
  EXPECT_EQ(run().rounds_published, 1);
}

}  // namespace
}  // namespace xffl::test
