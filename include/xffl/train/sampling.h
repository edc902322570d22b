// Choosing the next token from logits, with the meaning that Hugging Face's `generate` gives the
// settings, applied in its order: repetition penalty, temperature, top-k, top-p.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "xffl/base/random.h"

namespace xffl::train {

struct SamplingOptions {
  double temperature = 0;         // 0: greedy, the largest logit; of equal ones the first
  int64_t top_k = 0;              // 0: all
  double top_p = 1;               // 1: all
  double repetition_penalty = 1;  // 1: none (Keskar et al., 2019)
  uint64_t seed = 0;
};

/// Throws kUsage naming the option that is out of range.
void check(const SamplingOptions& options);

/// The probabilities that a token is drawn with; for greedy, 1 for the one taken. `seen` are the
/// ids so far, the prompt included.
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
