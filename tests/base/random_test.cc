#include "xffl/base/random.h"

#include <gtest/gtest.h>

namespace xffl {
namespace {

// Reference: the published C code of the algorithm with seed 1234567.
TEST(SplitMix64, MatchesTheReferenceSequence) {
  SplitMix64 random(1234567);
  for (const uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                  4593380528125082431u, 16408922859458223821u})
    EXPECT_EQ(random.next(), expected);
}

TEST(SplitMix64, NumberNIsComputedWithoutItsPredecessors) {
  SplitMix64 random(42);
  for (uint64_t n = 1; n <= 100; ++n)
    EXPECT_EQ(random.next(), splitmix64_mix(42 + n * kSplitMix64Step));
}

TEST(ToUnitInterval, IsBelowOneAndExact) {
  EXPECT_EQ(to_unit_interval(0), 0.0);
  EXPECT_EQ(to_unit_interval(uint64_t{1} << 63), 0.5);
  EXPECT_EQ(to_unit_interval(UINT64_MAX), 1.0 - 0x1.0p-53);
}

}  // namespace
}  // namespace xffl
