#include "xffl/upkeep/retention.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/context.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::upkeep {
namespace {

std::optional<plan::RoundPlan> plan_of(const facility::Context& context, int round) {
  return plan::next_round(context.experiment, context.identity,
                          {.rounds_published = round - 1,
                           .model_sha256 = context.history.model_sha256(round - 1),
                           .accepted = {},
                           .adapted_sha256 = context.history.done().adapted_sha256});
}

std::vector<std::string> names_in(remote::Session& session, const RemotePath& folder) {
  try {
    return session.list(folder);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kNotFound) return {};  // before the first push
    throw;
  }
}

// The model folders among `names` that no round from `old` on needs. A round that starts after the
// listing may add a model, which is not in `names`.
std::vector<std::string> unneeded_models(const facility::Context& context,
                                         const std::vector<std::string>& names, int old) {
  const plan::Done done = context.history.done();
  std::set<std::string> needed;
  for (int round = old; round <= done.rounds_published; ++round)
    needed.insert(plan::model_folder_name(context.history.model_sha256(round)));
  if (!done.adapted_sha256.empty()) needed.insert(plan::model_folder_name(done.adapted_sha256));
  std::vector<std::string> unneeded;
  for (const std::string& name : names)
    if (plan::is_model_folder_name(name) && !needed.contains(name)) unneeded.push_back(name);
  return unneeded;
}

// Removes the rounds up to `old` from a facility, and the models that only they used. With
// `searches` looks for rounds before `old`, too.
void remove_rounds(facility::Context& context, const plan::FacilityPlan& facility, int old,
                   int newest, bool searches, const std::stop_token& stop) {
  const facility::StateOf state = [&](int round) {
    return context.history.facility(round, facility.facility);
  };
  const auto session =
      context.guarded.of(context.services.connect(context.experiment.facility(facility.facility)));
  const RemotePath models = plan::models_folder(facility.folder);
  std::vector<int> rounds{old};
  std::vector<std::string> names{facility.model_folder.filename()};
  if (searches) {
    rounds.clear();
    for (const std::string& name : names_in(*session, facility.folder))
      if (const auto round = plan::parse_round_name(name); round && *round <= old)
        rounds.push_back(*round);
    names = names_in(*session, models);
  }
  const auto check = [&] {
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
    // After the listing: a stale coordinator does not know the models of a newer one.
    context.history.check_writer();
  };
  for (const int round : rounds) {
    check();
    facility::remove_round(*session, facility, round, newest, state, stop);
  }
  for (const std::string& name : unneeded_models(context, names, old)) {
    check();
    session->remove_tree(models / name, stop);
  }
}

}  // namespace

// A thread for the removals of one place. A newer task replaces a task that has not begun.
class RetentionWorker::Worker {
 public:
  struct Task {
    plan::FacilityPlan facility;  // of the round `old`; empty for this machine
    int old = 0;                  // the newest round to remove
    int newest = 0;               // the newest published round
    bool searches = false;        // for rounds before `old`
  };
  using Remove = std::function<void(const Task&, const std::stop_token&)>;

  Worker(std::string place, const Clock& clock, Remove remove)
      : place_(std::move(place)),
        clock_(clock),
        remove_(std::move(remove)),
        thread_([this](std::stop_token stop) { work(stop); }) {}

  void start(Task task) {
    {
      const std::lock_guard lock(mutex_);
      if (next_) round_skipped_ = true;
      next_ = std::move(task);
    }
    changed_.notify_all();
  }
  /// Returns when all removals were tried, the last failure twice; false when `until` passes first.
  bool finish(const std::stop_token& stop, Clock::MonotonicTime until) {
    std::unique_lock lock(mutex_);
    if (!wait_until_idle(lock, stop, until)) return stop.stop_requested();
    if (!failed_) return true;
    next_ = failed_;
    changed_.notify_all();
    return wait_until_idle(lock, stop, until) || stop.stop_requested();
  }
  /// Makes the thread end soon; the destructor waits for it.
  void request_stop() { thread_.request_stop(); }
  const std::string& place() const { return place_; }

 private:
  bool wait_until_idle(std::unique_lock<std::mutex>& lock, const std::stop_token& stop,
                       Clock::MonotonicTime until) {
    const auto idle = [&] { return !next_ && !busy_; };
    while (!idle()) {
      if (stop.stop_requested() || clock_.monotonic() >= until) return false;
      changed_.wait_for(lock, stop, std::chrono::milliseconds(100), idle);
    }
    return true;
  }
  void work(const std::stop_token& stop) {
    const remote::StopScope stop_scope(stop);
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        busy_ = false;
        changed_.notify_all();
        if (!changed_.wait(lock, stop, [&] { return next_.has_value(); })) return;
        task = *std::exchange(next_, std::nullopt);
        task.searches = !tidy_ || std::exchange(round_skipped_, false);
        busy_ = true;
      }
      tidy_ = removed(task, stop);
      const std::lock_guard lock(mutex_);
      failed_ = tidy_ ? std::nullopt : std::optional(task);
    }
  }
  bool removed(const Task& task, const std::stop_token& stop) {
    try {
      remove_(task, stop);
      return true;
    } catch (const std::exception& error) {  // a thread's top
      if (!stop.stop_requested())
        log::warning("an old round was not removed, will retry after the next round",
                     {{"place", place_}, {"round", task.old}, {"problem", error.what()}});
      return false;
    }
  }

  const std::string place_;
  const Clock& clock_;
  const Remove remove_;
  bool tidy_ = false;  // no rounds older than the last task's; only the thread uses it
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<Task> next_, failed_;
  bool busy_ = false;
  bool round_skipped_ = false;
  std::jthread thread_;
};

RetentionWorker::RetentionWorker(facility::Context& context)
    : context_(context),
      local_(context.experiment.policy, context.folder,
             [&history = context.history] { history.check_writer(); }),
      here_(std::make_unique<Worker>(
          "this machine", context.services.clock,
          [this](const auto& task, const auto& stop) { local_.after(task.newest, stop); })) {}

RetentionWorker::~RetentionWorker() {
  here_->request_stop();
  for (const auto& [name, worker] : facilities_) worker->request_stop();
}

void RetentionWorker::after(const plan::RoundPlan& plan) {
  const int old = plan.round - context_.experiment.policy.keep_rounds;
  here_->start({.facility = {}, .old = old, .newest = plan.round});
  if (old < 1) return;
  const auto old_plan = plan_of(context_, old);
  if (!old_plan) return;
  for (const plan::FacilityPlan& facility : old_plan->facilities) {
    auto worker = facilities_.find(facility.facility);
    if (worker == facilities_.end()) {
      // Before its entry: this machine may refuse the thread.
      auto made = std::make_unique<Worker>(
          facility.facility.str(), context_.services.clock,
          [this](const Worker::Task& task, const std::stop_token& stop) {
            remove_rounds(context_, task.facility, task.old, task.newest, task.searches, stop);
          });
      worker = facilities_.emplace(facility.facility, std::move(made)).first;
    }
    worker->second->start({.facility = facility, .old = old, .newest = plan.round});
  }
}

void RetentionWorker::after_last() {
  const plan::Done done = context_.history.done();
  if (done.rounds_published == 0 || done.run_completed) return;
  if (const auto plan = plan_of(context_, done.rounds_published)) after(*plan);
}

void RetentionWorker::finish(std::stop_token stop, std::chrono::nanoseconds patience) {
  const Clock::MonotonicTime until = context_.services.clock.monotonic() + patience;
  here_->finish(stop, until);
  for (const auto& [name, worker] : facilities_)
    if (!worker->finish(stop, until))
      log::warning("old rounds are still being removed at a facility: the run ends without it",
                   {{"facility", name.str()},
                    {"waited_s", std::chrono::duration<double>(patience).count()},
                    {"to remove the rest",
                     "delete the run's folder there when its files are no longer needed"}});
}

}  // namespace xffl::upkeep
