#include "xffl/train/generate.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

#include "xffl/base/error.h"
#include "xffl/llama/decoder.h"

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

// Returns indices from the largest logit to the smallest; stable.
std::vector<size_t> descending(const std::vector<double>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  return order;
}

// Returns the number of tokens after top-k. Ties with the k-th token stay, as in Hugging Face's
// code.
size_t count_top_k(const std::vector<double>& logits, const std::vector<size_t>& order, int64_t k) {
  if (k == 0 || static_cast<size_t>(k) >= order.size()) return order.size();
  auto count = static_cast<size_t>(k);
  while (count < order.size() && logits[order[count]] == logits[order[count - 1]]) ++count;
  return count;
}

void require(bool valid, const std::string& message) {
  if (!valid) throw Error(ErrorKind::kUsage, message);
}

void check_prompt(const checkpoint::LlamaConfig& config, const std::vector<int64_t>& prompt,
                  const GenerateOptions& options) {
  if (prompt.empty())
    throw Error(ErrorKind::kUsage, "the prompt is empty: expected at least one id");
  const auto check_id = [&](int64_t id, const char* source) {
    if (id < 0 || id >= config.vocab_size)
      throw Error(ErrorKind::kUsage,
                  std::string(source) + " holds the id " + std::to_string(id) + ", expected 0 to " +
                      std::to_string(config.vocab_size - 1) + ": is this the model's tokenizer?");
  };
  for (const int64_t id : prompt) check_id(id, "the prompt");
  for (const int64_t id : options.stop_ids) check_id(id, "--stop-ids");
  if (static_cast<int64_t>(prompt.size()) >= config.max_position_embeddings)
    throw Error(ErrorKind::kUsage, "the prompt has " + std::to_string(prompt.size()) +
                                       " tokens, but the model's max_position_embeddings is " +
                                       std::to_string(config.max_position_embeddings) +
                                       ": no space for a new token; shorten the prompt");
  if (options.max_new_tokens < 1)
    throw Error(ErrorKind::kUsage, "--max-new-tokens: expected 1 or more, found " +
                                       std::to_string(options.max_new_tokens));
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

std::string_view to_string(FinishReason reason) {
  constexpr std::array<std::string_view, 4> kNames{"stop", "length", "context", "cancelled"};
  return kNames.at(static_cast<size_t>(reason));
}

FinishReason generate(llama::Model& model, const std::vector<int64_t>& prompt,
                      const GenerateOptions& options,
                      const std::function<bool(int64_t id)>& on_token) {
  const checkpoint::LlamaConfig& config = model.config();
  check_prompt(config, prompt, options);
  TokenSampler sampler(options.sampling);
  const auto prompt_size = static_cast<int64_t>(prompt.size());
  const int64_t space = config.max_position_embeddings - prompt_size;
  const int64_t limit = std::min(options.max_new_tokens, space);
  llama::Decoder decoder(model, prompt_size + limit);
  std::vector<int64_t> seen = prompt;
  at::Tensor logits_V = decoder.feed(prompt);
  for (int64_t count = 1;; ++count) {
    logits_V = logits_V.cpu().contiguous();
    if (!at::isfinite(logits_V).all().item<bool>())
      throw Error(ErrorKind::kFailed, "the logits after " + std::to_string(seen.size()) +
                                          " tokens are not finite: the model is damaged");
    const int64_t id = sampler.draw(
        {logits_V.const_data_ptr<float>(), static_cast<size_t>(logits_V.numel())}, seen);
    seen.push_back(id);
    if (!on_token(id)) return FinishReason::kCancelled;
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end())
      return FinishReason::kStop;
    if (count == options.max_new_tokens) return FinishReason::kLength;
    if (count == limit) return FinishReason::kContext;
    logits_V = decoder.feed({id});
  }
}

}  // namespace xffl::train
