// Reference: the definitions of Hugging Face's logits processors, by hand; draws by Pearson's test.
#include <gtest/gtest.h>

#include <cmath>

#include "xffl/base/error.h"
#include "xffl/train/generate.h"

namespace xffl::train {
namespace {

const std::vector<float> kLogits{1.0f, -0.5f, 2.0f, 0.0f, 2.0f};

std::vector<double> softmax(std::vector<double> scores) {
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score);
  for (double& score : scores) score /= sum;
  return scores;
}

void expect_probabilities(const SamplingOptions& options, const std::vector<double>& expected,
                          const std::vector<int64_t>& seen = {}) {
  const std::vector<double> found = token_probabilities(kLogits, seen, options);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
}

TEST(Sampling, GreedyTakesTheFirstOfTheLargest) { expect_probabilities({}, {0, 0, 1, 0, 0}); }

TEST(Sampling, TemperatureDividesTheLogits) {
  expect_probabilities({.temperature = 0.5}, softmax({2, -1, 4, 0, 4}));
}

TEST(Sampling, TopKKeepsTiesWithTheLast) {
  const double e = std::exp(1.0);
  expect_probabilities({.temperature = 1, .top_k = 1}, {0, 0, 0.5, 0, 0.5});
  expect_probabilities({.temperature = 1, .top_k = 3},
                       {1 / (1 + 2 * e), 0, e / (1 + 2 * e), 0, e / (1 + 2 * e)});
  expect_probabilities({.temperature = 1, .top_k = 99}, softmax({1, -0.5, 2, 0, 2}));
}

TEST(Sampling, TopPKeepsTheTokenThatReachesIt) {
  // Probabilities 0.38, 0.38, 0.14, ...
  expect_probabilities({.temperature = 1, .top_p = 0.3}, {0, 0, 1, 0, 0});
  expect_probabilities({.temperature = 1, .top_p = 0.5}, {0, 0, 0.5, 0, 0.5});
  const double e = std::exp(1.0);
  expect_probabilities({.temperature = 1, .top_p = 0.8},
                       {1 / (1 + 2 * e), 0, e / (1 + 2 * e), 0, e / (1 + 2 * e)});
}

TEST(Sampling, PenaltyMakesSeenTokensUnlikelyOnce) {
  expect_probabilities({.temperature = 1, .repetition_penalty = 2}, softmax({0.5, -1, 2, 0, 2}),
                       {0, 0, 1, 3});
  expect_probabilities({.repetition_penalty = 3}, {1, 0, 0, 0, 0}, {2, 4});
}

TEST(Sampling, DrawsFollowTheProbabilities) {
  const SamplingOptions options{.temperature = 0.9, .top_p = 0.95, .seed = 11};
  const std::vector<double> p = token_probabilities(kLogits, {}, options);
  TokenSampler sampler(options);
  constexpr int kDraws = 100000;
  std::vector<int> counts(kLogits.size(), 0);
  for (int i = 0; i < kDraws; ++i) counts[static_cast<size_t>(sampler.draw(kLogits, {}))] += 1;
  double chi_squared = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0);
    } else {
      chi_squared += std::pow(counts[i] - kDraws * p[i], 2) / (kDraws * p[i]);
    }
  }
  EXPECT_LT(chi_squared, 18.5);  // 3 degrees of freedom: beyond this once in 3,000 seeds
}

TEST(Sampling, DrawsDependOnTheSeed) {
  const auto text = [](uint64_t seed) {
    TokenSampler sampler({.temperature = 1, .seed = seed});
    std::vector<int64_t> ids;
    for (int i = 0; i < 30; ++i) ids.push_back(sampler.draw(kLogits, {}));
    return ids;
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

TEST(Sampling, RejectsOptionsOutOfRange) {
  for (const SamplingOptions& options : {SamplingOptions{.temperature = -1},
                                         {.temperature = NAN},
                                         {.top_k = -1},
                                         {.top_p = 0},
                                         {.top_p = 1.5},
                                         {.repetition_penalty = 0}}) {
    try {
      TokenSampler sampler(options);
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find("--"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace xffl::train
