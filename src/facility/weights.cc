#include "xffl/facility/weights.h"

#include <utility>

namespace xffl::facility {
namespace {

double reported_weight(const history::Accepted& accepted, config::WeightKind kind) {
  switch (kind) {
    case config::WeightKind::kTokens:
      return static_cast<double>(accepted.report.tokens);
    case config::WeightKind::kSamples:
      return static_cast<double>(accepted.report.samples);
    case config::WeightKind::kEqual:
      return 1.0;
  }
  return 1.0;
}

}  // namespace

std::vector<double> cap_shares(std::vector<double> weights, double max_share) {
  const size_t count = weights.size();
  if (max_share <= 0 || max_share >= 1) return weights;
  if (static_cast<double>(count) * max_share <= 1) return std::vector<double>(count, 1.0);
  std::vector<bool> is_capped(count, false);
  int num_capped = 0;
  double total = 0;  // with the capped weights at max_share of it
  for (bool changed = true; changed;) {
    double uncapped = 0;
    for (size_t i = 0; i < count; ++i)
      if (!is_capped[i]) uncapped += weights[i];
    total = uncapped / (1 - num_capped * max_share);
    changed = false;
    for (size_t i = 0; i < count; ++i) {
      // Rounding aside, the shares of the capped weights are always below 1 together.
      if (is_capped[i] || weights[i] <= max_share * total || (num_capped + 1) * max_share >= 1)
        continue;
      is_capped[i] = changed = true;
      ++num_capped;
    }
  }
  for (size_t i = 0; i < count; ++i)
    if (is_capped[i]) weights[i] = max_share * total;
  return weights;
}

std::vector<double> weights_of(const std::vector<history::Accepted>& accepted,
                               const config::Aggregation& settings) {
  std::vector<double> weights;
  for (const history::Accepted& update : accepted)
    weights.push_back(reported_weight(update, settings.weights));
  return cap_shares(std::move(weights), settings.max_share);
}

}  // namespace xffl::facility
