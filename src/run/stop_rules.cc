#include "xffl/run/stop_rules.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace xffl::run {
namespace {

using Model = history::Progress::Model;

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// The measured models that can be compared, without a gap, up to the newest one.
std::vector<Model> comparable_models(const history::Progress& progress) {
  std::vector<Model> models;
  for (size_t k = progress.first_comparable(); k < progress.models().size(); ++k)
    if (progress.models()[k].loss) models.push_back(progress.models()[k]);
  return models;
}

std::optional<std::string> no_better_for(int rounds, const std::vector<Model>& models) {
  if (rounds == 0 || models.empty()) return std::nullopt;
  const auto best =
      std::min_element(models.begin(), models.end(),
                       [](const Model& a, const Model& b) { return *a.loss < *b.loss; });
  const auto later = models.end() - best - 1;
  if (later < rounds) return std::nullopt;
  return "the mean validation loss has not been below " + number_text(*best->loss) + " for " +
         std::to_string(later) + " rounds";
}

std::optional<std::string> loss_below(double limit, const std::vector<Model>& models) {
  if (limit == 0 || models.empty() || *models.back().loss >= limit) return std::nullopt;
  return "the mean validation loss is " + number_text(*models.back().loss) + ", below " +
         number_text(limit);
}

std::optional<std::string> gain_per_node_hour(double limit, const std::vector<Model>& models) {
  if (limit == 0 || models.size() <= kGainRounds) return std::nullopt;
  const Model& from = models[models.size() - 1 - kGainRounds];
  const Model& to = models.back();
  const double hours = (to.node_seconds - from.node_seconds) / 3600;
  if (hours <= 0) return std::nullopt;
  const double gain = (*from.loss - *to.loss) / hours;
  if (gain >= limit) return std::nullopt;
  return "the last " + std::to_string(kGainRounds) +
         " measured rounds lowered the mean validation loss by " + number_text(gain) +
         " per node-hour, less than " + number_text(limit);
}

std::optional<std::string> wall_clock(std::chrono::seconds limit, const std::string& created_utc,
                                      Clock::UtcTime now) {
  const auto created = parse_utc(created_utc);
  if (limit.count() == 0 || !created || now - *created < limit) return std::nullopt;
  return "the run began " + created_utc + ", more than " + std::to_string(limit.count() / 3600) +
         " h " + std::to_string(limit.count() / 60 % 60) + " min ago";
}

}  // namespace

std::optional<history::StopRuleMet> met_rule(const config::StopRules& rules,
                                             const history::Progress& progress,
                                             Clock::UtcTime now) {
  const std::vector<Model> models = comparable_models(progress);
  using history::StopRuleMet;
  if (auto reason = no_better_for(rules.no_better_for, models))
    return StopRuleMet{"no_better_for", *reason};
  if (auto reason = loss_below(rules.loss_below, models)) return StopRuleMet{"loss_below", *reason};
  if (auto reason = gain_per_node_hour(rules.gain_per_node_hour, models))
    return StopRuleMet{"gain_per_node_hour", *reason};
  if (auto reason = wall_clock(rules.wall_clock, progress.created_utc(), now))
    return StopRuleMet{"wall_clock", *reason};
  return std::nullopt;
}

}  // namespace xffl::run
