#include "xffl/shard/flat_layout.h"

#include <gtest/gtest.h>

#include "shard/small_layout.h"

namespace xffl::shard {
namespace {

TEST(FlatLayout, DecayedParametersComeFirstAndNothingOverlaps) {
  const FlatLayout layout(small_layout(), 1);
  ASSERT_EQ(layout.units().size(), 2u);
  EXPECT_EQ(layout.places()[2].offset, 0);
  EXPECT_EQ(layout.places()[3].offset, 64);
  EXPECT_EQ(layout.units()[1].num_decayed, 64 + 4928);
  EXPECT_EQ(layout.places()[1].offset, 64 + 4928);
  EXPECT_EQ(layout.places()[4].offset, 64 + 4928 + 64);
  EXPECT_EQ(layout.units()[1].size, 2 * kPieceElements);
}

// Parameters and gaps cover each element of the buffer once.
TEST(FlatLayout, GapsCoverTheRestOfTheBuffer) {
  for (const int num_shards : {1, 2, 3}) {
    const FlatLayout layout(small_layout(), num_shards);
    for (int unit = 0; unit < 2; ++unit) {
      std::vector<int> uses(static_cast<size_t>(layout.units()[static_cast<size_t>(unit)].size), 0);
      const auto use = [&](int64_t begin, int64_t count) {
        for (int64_t i = begin; i < begin + count; ++i) ++uses.at(static_cast<size_t>(i));
      };
      for (const Place& place : layout.places())
        if (place.unit == unit) use(place.offset, place.num_elements);
      for (const Range& gap : layout.units()[static_cast<size_t>(unit)].gaps)
        use(gap.begin, gap.count);
      EXPECT_EQ(uses, std::vector<int>(uses.size(), 1)) << unit << " " << num_shards;
    }
  }
}

TEST(FlatLayout, ShardsAreWholePiecesAndCoverEachParameter) {
  for (const int num_shards : {1, 2, 3, 4}) {
    const FlatLayout layout(small_layout(), num_shards);
    for (size_t i = 0; i < layout.places().size(); ++i) {
      int64_t covered = 0;
      for (int shard = 0; shard < num_shards; ++shard) {
        EXPECT_EQ(layout.shard(layout.places()[i].unit, shard).count % kPieceElements, 0);
        const Range range = layout.overlap(i, shard);
        EXPECT_TRUE(range.count == 0 || range.begin == covered);
        covered += range.count;
      }
      EXPECT_EQ(covered, layout.places()[i].num_elements);
    }
  }
}

}  // namespace
}  // namespace xffl::shard
