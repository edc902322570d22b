#include "xffl/history/progress.h"

#include <cmath>
#include <variant>

namespace xffl::history {

void Progress::add(const RecordedEvent& recorded, const std::function<double()>& node_seconds) {
  const EventScope& scope = recorded.scope;
  if (std::holds_alternative<RunCreated>(recorded.event)) {
    created_utc_ = recorded.time_utc;
  } else if (std::holds_alternative<FacilityLeft>(recorded.event)) {
    left_.insert(*scope.facility);
    const auto of_facility = [&](const auto& each) { return each.first.first == *scope.facility; };
    if (std::erase_if(losses_, of_facility) + std::erase_if(in_round_, of_facility) > 0)
      first_comparable_ = models_.size() - 1;
  } else if (std::holds_alternative<FacilityJoined>(recorded.event)) {
    left_.erase(*scope.facility);
  } else if (const auto* update = std::get_if<UpdateAccepted>(&recorded.event)) {
    if (left_.contains(*scope.facility)) return;
    for (const job::ValidationResult& result : update->report.validation)
      in_round_[{*scope.facility, result.name}] = result.nll_before;
  } else if (std::holds_alternative<UpdateLost>(recorded.event)) {
    std::erase_if(in_round_, [&](const auto& each) { return each.first.first == *scope.facility; });
  } else if (std::holds_alternative<Published>(recorded.event)) {
    publish(scope.round, node_seconds());
  }
}

void Progress::publish(int round, double node_seconds) {
  if (round < 1 || static_cast<size_t>(round) != models_.size()) return;
  const size_t input = models_.size() - 1;
  for (const auto& [set, loss] : in_round_) {
    if (!std::isfinite(loss)) continue;
    if (losses_.insert_or_assign(set, loss).second) first_comparable_ = input;
  }
  in_round_.clear();
  if (!losses_.empty()) {
    double sum = 0;
    for (const auto& [set, loss] : losses_) sum += loss;
    models_.back().loss = sum / static_cast<double>(losses_.size());
  }
  models_.push_back({.loss = {}, .node_seconds = node_seconds});
}

}  // namespace xffl::history
