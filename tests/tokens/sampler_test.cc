#include "xffl/tokens/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "support/thrown.h"

namespace xffl::tokens {
namespace {

using test::kind_of;
using testing::ElementsAre;
using Indices = std::vector<uint64_t>;

// Reference: tests/tokens/permutation_reference.py. A changed value would change the data order of
// runs that an earlier version began.
TEST(Permutation, MatchesTheGoldenValues) {
  EXPECT_THAT(permutation(10, 0, 0), ElementsAre(6, 3, 2, 9, 8, 1, 4, 7, 0, 5));
  EXPECT_THAT(permutation(10, 1, 0), ElementsAre(7, 4, 3, 8, 5, 9, 2, 0, 6, 1));
  EXPECT_THAT(permutation(10, 1, 1), ElementsAre(4, 7, 9, 2, 3, 1, 6, 8, 0, 5));
  const Indices large = permutation(1000000, 42, 7);
  EXPECT_THAT(Indices(large.begin(), large.begin() + 4),
              ElementsAre(353770, 258350, 889356, 922817));
}

TEST(Permutation, ContainsEveryIndexOnce) {
  for (const uint64_t n : {0, 1, 2, 3, 257}) {
    Indices order = permutation(n, 5, 6);
    std::sort(order.begin(), order.end());
    Indices expected(n);
    std::iota(expected.begin(), expected.end(), uint64_t{0});
    EXPECT_EQ(order, expected);
  }
}

TEST(Permutation, PutsEachIndexFirstAboutEquallyOften) {
  std::vector<int> first(5, 0);
  for (uint64_t seed = 0; seed < 5000; ++seed) ++first[permutation(5, seed, 0)[0]];
  // The expected count is 1000; five standard deviations are 141.
  for (const int count : first) EXPECT_NEAR(count, 1000, 141);
}

Indices union_of_ranks(uint64_t n, uint64_t batch, int world_size, uint64_t step) {
  Indices all;
  for (int rank = 0; rank < world_size; ++rank) {
    const Indices mine = Sampler(n, batch, 11, rank, world_size).step_indices(step);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Sampler, GlobalBatchOfAStepDoesNotDependOnTheWorldSize) {
  for (const uint64_t batch : {1, 4, 6, 7, 40}) {
    for (const uint64_t step : {0, 1, 2, 9}) {
      const Indices alone = union_of_ranks(17, batch, 1, step);
      EXPECT_EQ(alone.size(), batch);
      for (const int world_size : {2, 3, 4, 8}) {
        EXPECT_EQ(union_of_ranks(17, batch, world_size, step), alone)
            << "batch " << batch << ", step " << step << ", world size " << world_size;
      }
    }
  }
}

TEST(Sampler, ReadsEachSequenceOncePerEpoch) {
  Sampler sampler(12, 5, 3, 0, 1);
  Indices stream;
  for (uint64_t step = 0; step < 12; ++step) {
    const Indices indices = sampler.step_indices(step);
    stream.insert(stream.end(), indices.begin(), indices.end());
  }
  ASSERT_EQ(stream.size(), 60u);
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    const auto begin = stream.begin() + static_cast<std::ptrdiff_t>(epoch * 12);
    EXPECT_EQ(Indices(begin, begin + 12), permutation(12, 3, epoch));
  }
}

TEST(Sampler, AStepDoesNotDependOnEarlierCalls) {
  Sampler from_start(100, 8, 9, 1, 2);
  for (uint64_t step = 0; step < 30; ++step) from_start.step_indices(step);
  EXPECT_EQ(Sampler(100, 8, 9, 1, 2).step_indices(30), from_start.step_indices(30));
  EXPECT_EQ(Sampler(100, 8, 9, 1, 2).step_indices(3), from_start.step_indices(3));
}

TEST(Sampler, TakesPositionsCongruentToTheRank) {
  // Step 1 of batches of 3 takes positions 3, 4, 5: rank 1 of 2 takes 3 and 5, rank 0 takes 4.
  const Indices order = permutation(9, 0, 0);
  EXPECT_EQ(Sampler(9, 3, 0, 1, 2).step_indices(1), (Indices{order[3], order[5]}));
  EXPECT_EQ(Sampler(9, 3, 0, 0, 2).step_indices(1), (Indices{order[4]}));
}

TEST(Sampler, RejectsInvalidArguments) {
  EXPECT_EQ(kind_of([] { Sampler(0, 1, 0, 0, 1); }), ErrorKind::kUsage);
  EXPECT_EQ(kind_of([] { Sampler(1, 0, 0, 0, 1); }), ErrorKind::kUsage);
  EXPECT_EQ(kind_of([] { Sampler(1, 1, 0, 1, 1); }), ErrorKind::kUsage);
  EXPECT_EQ(kind_of([] { Sampler(1, 1, 0, -1, 1); }), ErrorKind::kUsage);
  EXPECT_EQ(kind_of([] { Sampler(1, 1, 0, 0, 0); }), ErrorKind::kUsage);
  EXPECT_EQ(kind_of([] { Sampler(1, 2, 0, 0, 1).step_indices(UINT64_MAX / 2 + 1); }),
            ErrorKind::kUsage);
}

}  // namespace
}  // namespace xffl::tokens
