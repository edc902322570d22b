#include "xffl/train/dataset.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/base/error.h"

namespace xffl::train {
namespace {

class DatasetTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name,
                              const std::vector<std::vector<int32_t>>& sequences) {
    tokens::TokenShardWriter writer(dir_ / name, 50, 8, false);
    for (const auto& sequence : sequences) writer.add_document(sequence);
    writer.finish();
    return dir_ / name;
  }
  test::TempDir dir_;
};

TEST_F(DatasetTest, ShiftsAndPads) {
  const Dataset data({write("a.tokens", {{1, 2, 3, 4}, {5}, {6, 7}})}, 50, 0);
  const std::vector<uint64_t> indices{0, 1, 2};
  const Batch batch = data.batch(indices, at::kCPU);
  EXPECT_EQ(batch.num_targets, 4);
  const at::Tensor labels =
      at::tensor(std::vector<int64_t>{2, 3, 4, -100, -100, -100, 7, -100, -100}).view({3, 3});
  EXPECT_TRUE(batch.labels_BT.equal(labels));
  const at::Tensor tokens =
      at::tensor(std::vector<int64_t>{1, 2, 3, 5, 0, 0, 6, 7, 0}).view({3, 3});
  EXPECT_TRUE(batch.tokens_BT.equal(tokens));
}

TEST_F(DatasetTest, JoinsShardsAndStopsAtTheLimit) {
  const auto a = write("a.tokens", {{1, 2}, {3, 4, 5}});
  const auto b = write("b.tokens", {{6, 7, 8, 9}, {10, 11}});
  const Dataset all({a, b}, 50, 0);
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(all.length(2), 4);
  const std::vector<uint64_t> third{2};
  EXPECT_EQ(all.batch(third, at::kCPU).tokens_BT[0][0].item<int64_t>(), 6);
  const Dataset some({a, b}, 50, 3);
  EXPECT_EQ(some.size(), 3u);
  EXPECT_THROW(some.length(3), Error);
}

TEST_F(DatasetTest, RefusesALargerVocabulary) {
  const auto a = write("a.tokens", {{1, 2}});
  try {
    Dataset({a}, 49, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRejected);
    EXPECT_NE(std::string(error.what()).find("vocabulary of 50 tokens, but the model has 49"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace xffl::train
