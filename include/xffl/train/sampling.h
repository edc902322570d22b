// Samples the next token from logits. Settings have the meaning of Hugging Face's `generate` and
// are applied in its order: repetition penalty, temperature, top-k, top-p.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "xffl/base/random.h"

namespace xffl::train {

struct SamplingOptions {
  double temperature = 0;         // 0: greedy, the first of the largest logits
  int64_t top_k = 0;              // 0: all
  double top_p = 1;               // 1: all
  double repetition_penalty = 1;  // 1: none (Keskar et al., 2019)
  uint64_t seed = 0;
};

/// Throws kUsage naming the option that is out of range.
void check(const SamplingOptions& options);

/// The probability of each token; greedy gives probability 1 to one token. `seen` are the ids so
/// far, including the prompt.
std::vector<double> token_probabilities(std::span<const float> logits,
                                        std::span<const int64_t> seen,
                                        const SamplingOptions& options);

/// Draws tokens: the same seed, logits and order of calls give the same tokens on every machine.
class TokenSampler {
 public:
  explicit TokenSampler(const SamplingOptions& options);
  int64_t draw(std::span<const float> logits, std::span<const int64_t> seen);

 private:
  SamplingOptions options_;
  SplitMix64 random_;
};

}  // namespace xffl::train
