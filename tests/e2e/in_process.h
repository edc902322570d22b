// Test fixture: a federation in this process with substituted services: sessions that a test
// observes, a wall clock that jumps, a scheduler whose jobs pend.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "e2e/project.h"
#include "support/forwarding_scheduler.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/run/federation.h"

namespace xffl::test {

// A local session that calls `before` ahead of each operation; `before` may throw instead.
class WatchedSession final : public remote::Session {
 public:
  using Before = std::function<void(const std::string& operation, const RemotePath& path)>;
  using Removal = std::function<void(std::stop_token)>;  // called before each removal of a tree
  using Free = std::function<std::optional<uint64_t>(const RemotePath& folder)>;
  explicit WatchedSession(Before before, Removal removal = {}, Free free = {})
      : before_(std::move(before)), removal_(std::move(removal)), free_(std::move(free)) {}

  remote::CommandResult run(const std::vector<std::string>& argv, const std::string& text,
                            std::chrono::milliseconds timeout, std::stop_token stop) override {
    before_("run", RemotePath("/"));
    return inner_->run(argv, text, timeout, stop);
  }
  std::optional<remote::FileInfo> stat(const RemotePath& path) override {
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
  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    before_("remove_tree", path);
    if (removal_) removal_(stop);
    inner_->remove_tree(path, stop);
  }
  std::optional<uint64_t> free_bytes(const RemotePath& folder) override {
    return free_ ? free_(folder) : inner_->free_bytes(folder);
  }

 private:
  const Before before_;
  const Removal removal_;
  const Free free_;
  const std::unique_ptr<remote::Session> inner_ = remote::make_local_session();
};

// Real waits, shortened to `longest_sleep`, and a wall clock that the test sets.
class JumpingClock final : public Clock {
 public:
  MonotonicTime monotonic() const override { return real_.monotonic(); }
  UtcTime utc() const override { return real_.utc() + std::chrono::hours(ahead_hours); }
  bool sleep(std::chrono::nanoseconds duration, std::stop_token stop) override {
    longest_asked = std::max(longest_asked.load(),
                             duration.count());  // not atomic: near enough for several threads
    return real_.sleep(std::min<std::chrono::nanoseconds>(duration, longest_sleep), stop);
  }
  std::atomic<int> ahead_hours{0};
  std::atomic<std::chrono::nanoseconds> longest_sleep{std::chrono::hours(1)};
  std::atomic<int64_t> longest_asked{0};  // ns

 private:
  SystemClock real_;
};

// Reports the state `waiting` for all jobs while `waits` returns true.
class QueuedScheduler final : public ForwardingScheduler {
 public:
  QueuedScheduler(std::shared_ptr<submit::Scheduler> inner, std::function<bool()> waits,
                  submit::JobState waiting, std::chrono::milliseconds settle_time)
      : ForwardingScheduler(std::move(inner)),
        waits_(std::move(waits)),
        waiting_(waiting),
        settle_time_(settle_time) {}

  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token stop) override {
    const bool waits = waits_();
    auto states = ForwardingScheduler::query(jobs, stop);
    if (waits)
      for (auto& [id, status] : states) status.state = waiting_;
    return states;
  }
  std::chrono::milliseconds settle_time() const override { return settle_time_; }

 private:
  const std::function<bool()> waits_;
  const submit::JobState waiting_;
  const std::chrono::milliseconds settle_time_;
};

class InProcessFederation : public testing::Test {
 protected:
  InProcessFederation() { log::set_console_level(log::Level::kOff); }

  // Sets the function that `facility`'s session calls before each operation.
  void watch(const std::string& facility, WatchedSession::Before before) {
    before_[facility] = std::move(before);
  }
  facility::Services services() {
    facility::Services made = facility::make_services(clock_, project_.path());
    made.programs.xffl = std::filesystem::path(XFFL_BINARY_DIR) / "bin/xffl";
    const auto connect = [this](const config::Facility& facility) {
      if (const auto found = sessions_.find(facility.name.str()); found != sessions_.end())
        return found->second;
      const auto before = before_.find(facility.name.str());
      return std::shared_ptr<remote::Session>(
          before == before_.end()
              ? remote::make_local_session()
              : std::make_unique<WatchedSession>(before->second, removal_, free_));
    };
    made.connect = made.connect_transfer = connect;
    made.credential_expiry = {};  // the test may declare the facility remote
    made.scheduler = [inner = made.scheduler, this](const config::Facility& facility,
                                                    std::shared_ptr<remote::Session> session) {
      auto scheduler = inner(facility, std::move(session));
      if (facility.name.str() != "brno") return scheduler;
      if (brno_waits_)
        scheduler = std::make_shared<QueuedScheduler>(std::move(scheduler), brno_waits_,
                                                      brno_waiting_, brno_settles_);
      return brno_scheduler_ ? brno_scheduler_(std::move(scheduler)) : scheduler;
    };
    return made;
  }
  run::Outcome run() {
    facility::Services made = services();
    config::Experiment experiment = config::load_experiment(project_.path());
    if (change_) change_(experiment);
    return run::run_federation(experiment, {project_.path() / "runs", RunName("0001")}, made,
                               stop_.get_token());
  }

  // The folder of the only run at facility `name`.
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
  std::map<std::string, std::shared_ptr<remote::Session>> sessions_;  // replace local sessions
  WatchedSession::Removal removal_;   // for the sessions that watch() observes
  WatchedSession::Free free_;         // the same
  std::function<bool()> brno_waits_;  // true while brno's jobs pend
  submit::JobState brno_waiting_ = submit::JobState::kPending;
  std::chrono::milliseconds brno_settles_{300};
  using Scheduler = std::shared_ptr<submit::Scheduler>;
  std::function<Scheduler(Scheduler)> brno_scheduler_;  // wraps brno's scheduler
  std::function<void(config::Experiment&)> change_;
};

// A function that throws in its first `count` calls.
inline auto times(int count, ErrorKind kind, const std::string& message) {
  return [left = std::make_shared<std::atomic<int>>(count), kind, message] {
    if ((*left)-- > 0) throw Error(kind, message);
  };
}

}  // namespace xffl::test
