// Continues a prompt, token by token. Includes no torch headers, so that command lines can include
// this file.
//
// Sampling settings have the meaning of Hugging Face's `generate`. The sampler applies them in
// Hugging Face's order: repetition penalty, temperature, top-k, top-p.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "xffl/base/random.h"

namespace xffl::llama {
class Model;
}

namespace xffl::train {

struct SamplingOptions {
  double temperature = 0;         // 0: greedy, the first of the largest logits
  int64_t top_k = 0;              // 0: all
  double top_p = 1;               // 1: all
  double repetition_penalty = 1;  // 1: none (Keskar et al., 2019)
  uint64_t seed = 0;
};

/// Throws kUsage; the message names the option that is out of range.
void check(const SamplingOptions& options);

/// The probability of each token. Greedy sampling gives probability 1 to one token. `seen` are the
/// ids so far, including the prompt.
std::vector<double> token_probabilities(std::span<const float> logits,
                                        std::span<const int64_t> seen,
                                        const SamplingOptions& options);

/// Draws tokens. The same seed, logits and order of calls give the same tokens on every machine.
class TokenSampler {
 public:
  explicit TokenSampler(const SamplingOptions& options);
  int64_t draw(std::span<const float> logits, std::span<const int64_t> seen);

 private:
  SamplingOptions options_;
  SplitMix64 random_;
};

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  std::vector<int64_t> stop_ids;  // the first drawn stop id ends the text
};

enum class FinishReason { kStop, kLength, kContext, kCancelled };
std::string_view to_string(FinishReason reason);  // "stop", "length", "context", "cancelled"

/// Calls `on_token` with each new id as soon as the sampler has drawn the id, including a stop id.
/// Generation ends with kCancelled if `on_token` returns false, and with kContext at the model's
/// max_position_embeddings.
///
/// Throws kUsage for options out of range, an empty prompt, an id beyond the vocabulary, and a
/// prompt without space for a new token. Throws kFailed if the logits are not finite.
FinishReason generate(llama::Model& model, const std::vector<int64_t>& prompt,
                      const GenerateOptions& options,
                      const std::function<bool(int64_t id)>& on_token);

}  // namespace xffl::train
