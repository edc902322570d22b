#include "xffl/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "xffl/base/error.h"

namespace xffl::train {
namespace {

std::vector<double> penalised(std::span<const float> logits, std::span<const int64_t> seen,
                              double penalty) {
  std::vector<double> result(logits.begin(), logits.end());
  if (penalty == 1) return result;
  for (const int64_t id : seen) {
    const auto i = static_cast<size_t>(id);
    const double logit = logits[i];  // penalised once, even if seen often
    result[i] = logit > 0 ? logit / penalty : logit * penalty;
  }
  return result;
}

// Indices from the largest logit to the smallest; stable.
std::vector<size_t> descending(const std::vector<double>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  return order;
}

// The number of tokens after top-k; ties with the k-th token stay, as in HF.
size_t count_top_k(const std::vector<double>& logits, const std::vector<size_t>& order, int64_t k) {
  if (k == 0 || static_cast<size_t>(k) >= order.size()) return order.size();
  auto count = static_cast<size_t>(k);
  while (count < order.size() && logits[order[count]] == logits[order[count - 1]]) ++count;
  return count;
}

void require(bool valid, const std::string& message) {
  if (!valid) throw Error(ErrorKind::kUsage, message);
}

}  // namespace

void check(const SamplingOptions& options) {
  const auto found = [](double value) { return ", found " + std::to_string(value); };
  require(options.temperature >= 0 && std::isfinite(options.temperature),
          "--temperature: expected 0 (greedy) or more" + found(options.temperature));
  require(options.top_k >= 0,
          "--top-k: expected 0 (all) or more" + found(static_cast<double>(options.top_k)));
  require(options.top_p > 0 && options.top_p <= 1,
          "--top-p: expected more than 0 and at most 1" + found(options.top_p));
  require(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty),
          "--repetition-penalty: expected more than 0" + found(options.repetition_penalty));
}

std::vector<double> token_probabilities(std::span<const float> logits,
                                        std::span<const int64_t> seen,
                                        const SamplingOptions& options) {
  std::vector<double> scores = penalised(logits, seen, options.repetition_penalty);
  std::vector<double> result(scores.size(), 0.0);
  if (options.temperature == 0) {
    result[static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin())] =
        1;
    return result;
  }
  for (double& score : scores) score /= options.temperature;
  const std::vector<size_t> order = descending(scores);
  const size_t count = count_top_k(scores, order, options.top_k);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::exp(scores[order[i]] - scores[order[0]]);
  double larger = 0;  // the probability of the previous tokens
  double kept = 0;
  for (size_t i = 0; i < count && (i == 0 || larger < options.top_p); ++i) {
    const double p = std::exp(scores[order[i]] - scores[order[0]]) / sum;
    result[order[i]] = p;
    larger += p;
    kept = larger;
  }
  for (double& p : result) p /= kept;
  return result;
}

TokenSampler::TokenSampler(const SamplingOptions& options)
    : options_(options), random_(options.seed) {
  check(options);
}

int64_t TokenSampler::draw(std::span<const float> logits, std::span<const int64_t> seen) {
  const std::vector<double> p = token_probabilities(logits, seen, options_);
  double left = to_unit_interval(random_.next());
  int64_t last = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    last = static_cast<int64_t>(i);
    left -= p[i];
    if (left < 0) break;
  }
  return last;
}

}  // namespace xffl::train
