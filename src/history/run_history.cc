#include "xffl/history/run_history.h"

namespace xffl::history {

Ledger::Ledger(const std::filesystem::path& path)
    : journal_(Store::open(path)), history_(replay(journal_->events())) {}

void Ledger::append(StoredEvent event, const Json& payload) {
  // What a facility said may be in it: text that is not UTF-8 must not end a run.
  event.payload = payload.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::lock_guard lock(mutex_);
  apply(history_, journal_->append(std::move(event)));
}

void Ledger::record(std::string kind, Json payload) { append({.kind = std::move(kind)}, payload); }

void Ledger::record(std::string kind, int round, Json payload) {
  append({.kind = std::move(kind), .round = round}, payload);
}

void Ledger::record(std::string kind, int round, const FacilityName& facility, int attempt,
                    Json payload) {
  append({.kind = std::move(kind), .round = round, .facility = facility.str(), .attempt = attempt},
         payload);
}

History Ledger::history() const {
  std::lock_guard lock(mutex_);
  return history_;
}

RoundState Ledger::round(int number) const {
  std::lock_guard lock(mutex_);
  const auto it = history_.rounds.find(number);
  return it == history_.rounds.end() ? RoundState{} : it->second;
}

std::optional<std::string> Ledger::paused(const FacilityName& name) const {
  std::lock_guard lock(mutex_);
  const auto it = history_.paused.find(name);
  if (it == history_.paused.end()) return std::nullopt;
  return it->second;
}

FacilityState Ledger::facility(int round, const FacilityName& name) const {
  const RoundState state = this->round(round);
  const auto it = state.facilities.find(name);
  return it == state.facilities.end() ? FacilityState{} : it->second;
}

}  // namespace xffl::history
