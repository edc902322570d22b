// References: cuts by hand.
#include <gtest/gtest.h>

#include "support/thrown.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {
namespace {

// A block has 4 * 64 * 64 + 3 * 64 * 128 = 40,960 elements in matrices, the head 64 * vocabulary.
checkpoint::LlamaConfig config_of(int64_t num_layers, int64_t vocab_size) {
  checkpoint::LlamaConfig config;
  config.vocab_size = vocab_size;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = num_layers;
  config.num_heads = config.num_kv_heads = 4;
  config.head_dim = 16;
  return config;
}

using Ranges = std::vector<UnitRange>;

TEST(StageUnits, OneStageHasAllUnits) {
  EXPECT_EQ(stage_units(config_of(6, 640), 1), (Ranges{{0, 8}}));
}

TEST(StageUnits, ASmallHeadSharesAStageWithBlocks) {  // it costs a block
  EXPECT_EQ(stage_units(config_of(6, 640), 2), (Ranges{{0, 4}, {4, 8}}));
  EXPECT_EQ(stage_units(config_of(5, 640), 2), (Ranges{{0, 4}, {4, 7}}));
}

TEST(StageUnits, ALargeHeadCostsSeveralBlocks) {  // 4 blocks
  EXPECT_EQ(stage_units(config_of(6, 2560), 2), (Ranges{{0, 6}, {6, 8}}));
  EXPECT_EQ(stage_units(config_of(8, 2560), 3), (Ranges{{0, 5}, {5, 9}, {9, 10}}));
}

TEST(StageUnits, EachUnitCanBeAStage) {
  EXPECT_EQ(stage_units(config_of(2, 640), 4), (Ranges{{0, 1}, {1, 2}, {2, 3}, {3, 4}}));
}

TEST(StageUnits, StagesAreContiguousAndCoverAllUnits) {
  for (const int64_t layers : {1, 7, 32}) {
    for (int stages = 1; stages <= layers + 2; ++stages) {
      const Ranges ranges = stage_units(config_of(layers, 3000), stages);
      ASSERT_EQ(ranges.size(), static_cast<size_t>(stages));
      int next = 0;
      for (const UnitRange& range : ranges) {
        EXPECT_EQ(range.first, next);
        EXPECT_GT(range.end, range.first);
        next = range.end;
      }
      EXPECT_EQ(next, layers + 2);
    }
  }
}

TEST(StageUnits, ErrorsNameTheSetting) {
  const Error many = test::error_of([] { stage_units(config_of(2, 640), 5); });
  EXPECT_EQ(many.kind(), ErrorKind::kConfig);
  EXPECT_NE(std::string(many.what()).find("the model has 4 units"), std::string::npos);
}

TEST(StageUnits, ATiedHeadCostsAsMuchAsAnother) {
  checkpoint::LlamaConfig tied = config_of(6, 2560);
  tied.tie_word_embeddings = true;
  EXPECT_EQ(stage_units(tied, 1).size(), 1u);
  EXPECT_EQ(stage_units(tied, 2), stage_units(config_of(6, 2560), 2));
}

}  // namespace
}  // namespace xffl::train
