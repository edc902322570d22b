#include "xffl/train/stage_units.h"

#include <algorithm>
#include <limits>
#include <string>

#include "xffl/base/error.h"
#include "xffl/llama/parameters.h"

namespace xffl::train {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Multiplications per token, relative to a block.
std::vector<double> unit_costs(const checkpoint::LlamaConfig& config) {
  std::vector<double> costs(static_cast<size_t>(config.num_layers) + 2, 0.0);
  for (const llama::ParameterSpec& spec : llama::parameter_specs(config))
    if (spec.unit != 0 && spec.is_matrix())
      costs[static_cast<size_t>(spec.unit)] += static_cast<double>(spec.num_elements());
  const double block = costs[1];
  for (double& cost : costs) cost /= block;
  return costs;
}

// The best partition of the units into stages, each with at least one unit and a cost of at most
// `limit`: it minimizes the largest cost, or the sum of squared costs.
struct Cut {
  double value = kNever;
  std::vector<UnitRange> stages;
};

Cut best_cut(const std::vector<double>& costs, int num_stages, double limit, bool squares) {
  const int num_units = static_cast<int>(costs.size());
  // best[s][u]: the value for the first u units in s stages; from[s][u]: the last stage's first
  // unit.
  std::vector<std::vector<double>> best(static_cast<size_t>(num_stages) + 1,
                                        std::vector<double>(costs.size() + 1, kNever));
  std::vector<std::vector<int>> from(best.size(), std::vector<int>(costs.size() + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s < best.size(); ++s) {
    for (int end = 1; end <= num_units; ++end) {
      double cost = 0;
      for (int first = end - 1; first >= 0; --first) {
        cost += costs[static_cast<size_t>(first)];
        if (cost > limit) break;
        const double before = best[s - 1][static_cast<size_t>(first)];
        const double value = squares ? before + cost * cost : std::max(before, cost);
        if (value > best[s][static_cast<size_t>(end)] || value == kNever) continue;
        best[s][static_cast<size_t>(end)] = value;
        from[s][static_cast<size_t>(end)] = first;
      }
    }
  }
  Cut cut{best.back().back(), {}};
  for (int s = num_stages, end = num_units; s > 0; --s) {
    const int first = from[static_cast<size_t>(s)][static_cast<size_t>(end)];
    cut.stages.insert(cut.stages.begin(), {first, end});
    end = first;
  }
  return cut;
}

}  // namespace

std::vector<UnitRange> stage_units(const checkpoint::LlamaConfig& config, int num_stages) {
  const std::vector<double> costs = unit_costs(config);
  if (num_stages == 1) return {{0, static_cast<int>(costs.size())}};
  if (static_cast<size_t>(num_stages) > costs.size()) {
    throw Error(ErrorKind::kConfig, "training.pipeline.stages is " + std::to_string(num_stages) +
                                        ", but the model has " + std::to_string(costs.size()) +
                                        " units (the embedding, " +
                                        std::to_string(config.num_layers) +
                                        " blocks, the head): use at most one stage per unit");
  }
  if (config.tie_word_embeddings) {
    throw Error(
        ErrorKind::kUnsupported,
        "training.pipeline.stages is " + std::to_string(num_stages) +
            ", but this model shares the weights of head and embedding (tie_word_embeddings), "
            "which would be on different stages: use 1 stage");
  }
  const double fastest = best_cut(costs, num_stages, kNever, false).value;
  return best_cut(costs, num_stages, fastest * (1 + 1e-9), true).stages;
}

}  // namespace xffl::train
