#include "xffl/upkeep/retention.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/context.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/plan/facility_layout.h"

namespace xffl::upkeep {
namespace {

namespace fs = std::filesystem;

std::string model_after(const history::RunState& run_state, int round) {
  return round == 0 ? run_state.initial_sha256 : run_state.rounds.at(round).model_sha256;
}

std::optional<plan::RoundPlan> plan_of(const facility::Context& context,
                                       const history::RunState& run_state, int round) {
  return plan::next_round(context.experiment, context.identity,
                          {.rounds_published = round - 1,
                           .model_sha256 = model_after(run_state, round - 1),
                           .accepted = {},
                           .adapted_sha256 = run_state.adapted_sha256});
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
  const history::RunState run_state = context.history.state();
  std::set<std::string> needed;
  for (int round = old; round <= run_state.done().rounds_published; ++round)
    needed.insert(plan::model_folder_name(model_after(run_state, round)));
  if (!run_state.adapted_sha256.empty())
    needed.insert(plan::model_folder_name(run_state.adapted_sha256));
  std::vector<std::string> unneeded;
  for (const std::string& name : names)
    if (plan::is_model_folder_name(name) && !needed.contains(name)) unneeded.push_back(name);
  return unneeded;
}

}  // namespace

RetentionWorker::RetentionWorker(facility::Context& context)
    : context_(context), thread_([this](std::stop_token stop) { work(stop); }) {}

void RetentionWorker::after(const plan::RoundPlan& plan) {
  {
    const std::lock_guard lock(mutex_);
    if (next_) round_skipped_ = true;
    next_ = plan;
  }
  changed_.notify_all();
}

void RetentionWorker::after_last() {
  const history::RunState run_state = context_.history.state();
  const int last = run_state.done().rounds_published;
  if (last == 0 || run_state.completed) return;
  if (const auto plan = plan_of(context_, run_state, last)) after(*plan);
}

void RetentionWorker::finish(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return !next_ && !busy_; };
  if (!changed_.wait(lock, stop, idle) || !failed_) return;
  next_ = failed_;
  changed_.notify_all();
  changed_.wait(lock, stop, idle);
}

void RetentionWorker::work(const std::stop_token& stop) {
  for (;;) {
    std::optional<plan::RoundPlan> plan;
    {
      std::unique_lock lock(mutex_);
      busy_ = false;
      changed_.notify_all();
      if (!changed_.wait(lock, stop, [&] { return next_.has_value(); })) return;
      plan = std::exchange(next_, std::nullopt);
      if (std::exchange(round_skipped_, false)) tidy_.clear();
      busy_ = true;
    }
    const bool cleaned = clean(*plan, stop);
    const std::lock_guard lock(mutex_);
    failed_ = cleaned ? std::nullopt : plan;
  }
}

bool RetentionWorker::clean(const plan::RoundPlan& plan, const std::stop_token& stop) {
  const int old = plan.round - context_.experiment.policy.keep_rounds;
  if (old < 1) return true;
  std::error_code none;
  for (int round = 0; round < old; ++round) fs::remove_all(context_.folder.master(round), none);
  try {
    const auto old_plan = plan_of(context_, context_.history.state(), old);
    if (!old_plan) return true;
    for (const plan::FacilityPlan& facility : old_plan->facilities) {
      if (stop.stop_requested()) return false;
      clean(plan, facility, stop);
    }
    return tidy_.size() == old_plan->facilities.size();
  } catch (const std::exception& error) {  // a thread's top
    log::warning("old rounds were not removed, will retry",
                 {{"round", old}, {"problem", error.what()}});
    return false;
  }
}

void RetentionWorker::clean(const plan::RoundPlan& plan, const plan::FacilityPlan& facility,
                            const std::stop_token& stop) {
  const int old = plan.round - context_.experiment.policy.keep_rounds;
  const bool tidy = tidy_.erase(facility.facility) > 0;
  const facility::StateOf state = [&](int round) {
    return context_.history.facility(round, facility.facility);
  };
  try {
    const auto session = context_.services.connect(context_.experiment.facility(facility.facility));
    const RemotePath models = plan::models_folder(facility.folder);
    std::vector<int> rounds{old};
    std::vector<std::string> names{facility.model_folder.filename()};
    if (!tidy) {
      rounds.clear();
      for (const std::string& name : names_in(*session, facility.folder))
        if (const auto round = plan::parse_round_name(name); round && *round <= old)
          rounds.push_back(*round);
      names = names_in(*session, models);
    }
    for (const int round : rounds) {
      if (stop.stop_requested()) return;
      facility::remove_round(*session, facility, round, plan.round, state, stop);
    }
    for (const std::string& name : unneeded_models(context_, names, old)) {
      if (stop.stop_requested()) return;
      session->remove_tree(models / name, stop);
    }
    tidy_.insert(facility.facility);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled && stop.stop_requested()) return;
    log::warning(
        "an old round was not removed at the facility, will retry after the next round",
        {{"facility", facility.facility.str()}, {"round", old}, {"problem", error.what()}});
  }
}

}  // namespace xffl::upkeep
