#include "xffl/history/run_history.h"

namespace xffl::history {

RunHistory::RunHistory(const std::filesystem::path& path)
    : journal_(Store::open(path)), run_state_(replay(journal_->events())) {}

void RunHistory::record(const EventScope& scope, const Event& event) {
  StoredEvent stored = encode(scope, event);
  const std::lock_guard lock(mutex_);
  // The state follows from the stored bytes, as it does after a restart.
  apply(run_state_, decode(journal_->append(std::move(stored))));
}

RunState RunHistory::state() const {
  std::lock_guard lock(mutex_);
  return run_state_;
}

RoundState RunHistory::round(int number) const {
  std::lock_guard lock(mutex_);
  const auto it = run_state_.rounds.find(number);
  return it == run_state_.rounds.end() ? RoundState{} : it->second;
}

std::optional<std::string> RunHistory::paused(const FacilityName& name) const {
  std::lock_guard lock(mutex_);
  const auto it = run_state_.paused.find(name);
  if (it == run_state_.paused.end()) return std::nullopt;
  return it->second;
}

FacilityState RunHistory::facility(int round, const FacilityName& name) const {
  const RoundState state = this->round(round);
  const auto it = state.facilities.find(name);
  return it == state.facilities.end() ? FacilityState{} : it->second;
}

}  // namespace xffl::history
