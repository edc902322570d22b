#include "xffl/history/run_history.h"

namespace xffl::history {

RunHistory::RunHistory(const std::filesystem::path& path)
    : journal_(Store::open(path)), run_state_(replay(journal_->events())) {}

void RunHistory::append(StoredEvent event, const Json& payload) {
  // What a facility said may be in it: text that is not UTF-8 must not end a run.
  event.payload = payload.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::lock_guard lock(mutex_);
  apply(run_state_, journal_->append(std::move(event)));
}

void RunHistory::record(std::string kind, Json payload) {
  append({.kind = std::move(kind)}, payload);
}

void RunHistory::record(std::string kind, int round, Json payload) {
  append({.kind = std::move(kind), .round = round}, payload);
}

void RunHistory::record(std::string kind, int round, const FacilityName& facility, int attempt,
                        Json payload) {
  append({.kind = std::move(kind), .round = round, .facility = facility.str(), .attempt = attempt},
         payload);
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
