#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::checkpoint {
namespace {

using testing::HasSubstr;

const std::vector<TensorSpec> kModel{{"a", Dtype::kF32, {4, 2}}, {"b", Dtype::kF32, {4}}};

std::string error_of(const std::vector<TensorSpec>& found, bool any_float = false) {
  const Thrown thrown =
      thrown_by([&] { check_same_schema(found, kModel, any_float, "update of brno"); });
  EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
  EXPECT_THAT(thrown.message, HasSubstr("update of brno"));
  return thrown.message;
}

TEST(CheckSameSchema, AcceptsAnyOrder) {
  EXPECT_NO_THROW(check_same_schema({kModel[1], kModel[0]}, kModel, false, "x"));
}

TEST(CheckSameSchema, ErrorNamesTheFirstDifference) {
  EXPECT_THAT(error_of({kModel[0]}), HasSubstr("'b' is missing"));
  EXPECT_THAT(error_of({kModel[0], kModel[1], {"c", Dtype::kF32, {1}}}),
              HasSubstr("'c' is not a tensor"));
  EXPECT_THAT(error_of({{"a", Dtype::kF32, {2, 4}}, kModel[1]}),
              HasSubstr("'a' has the shape [2, 4], expected [4, 2]"));
  EXPECT_THAT(error_of({kModel[0], {"b", Dtype::kF32, {}}}),
              HasSubstr("'b' has the shape [], expected [4]"));
  EXPECT_THAT(error_of({kModel[0], kModel[1], kModel[1]}), HasSubstr("'b' appears twice"));
}

TEST(CheckSameSchema, ComparesDtypesUnlessAnyFloatIsAllowed) {
  const std::vector<TensorSpec> half{{"a", Dtype::kBF16, {4, 2}}, {"b", Dtype::kF16, {4}}};
  EXPECT_THAT(error_of(half), HasSubstr("'a' has the type BF16, expected F32"));
  EXPECT_NO_THROW(check_same_schema(half, kModel, true, "x"));
  EXPECT_THAT(error_of({{"a", Dtype::kF64, {4, 2}}, kModel[1]}, true), HasSubstr("F64"));
  EXPECT_THAT(error_of({{"a", Dtype::kI32, {4, 2}}, kModel[1]}, true), HasSubstr("I32"));
}

TEST(PlanShards, PlansOneFileForASmallModel) {
  const ShardPlan plan = plan_shards(kModel, 48);
  ASSERT_EQ(plan.shards.size(), 1u);
  EXPECT_EQ(plan.shards[0].filename, "model.safetensors");
  EXPECT_EQ(plan.shards[0].tensors, kModel);
  EXPECT_EQ(plan.index_json, "");
}

TEST(PlanShards, FillsFilesInOrderAndWritesTheIndex) {
  const std::vector<TensorSpec> tensors{{"c", Dtype::kF32, {2}},
                                        {"a", Dtype::kF32, {100}},
                                        {"b", Dtype::kBF16, {2}},
                                        {"e", Dtype::kF32, {0}},
                                        {"d", Dtype::kU8, {3}}};
  const ShardPlan plan = plan_shards(tensors, 8);
  ASSERT_EQ(plan.shards.size(), 3u);
  EXPECT_EQ(plan.shards[0].filename, "model-00001-of-00003.safetensors");
  EXPECT_EQ(plan.shards[1].tensors.size(),
            1u);  // larger than max_shard_bytes: in a file of its own
  EXPECT_EQ(plan.shards[2].filename, "model-00003-of-00003.safetensors");
  EXPECT_EQ(plan.shards[2].tensors.size(), 3u);
  const Json index = parse_json(plan.index_json, "index");
  EXPECT_EQ(index["metadata"]["total_size"], 8 + 400 + 4 + 0 + 3);
  EXPECT_EQ(index["weight_map"].size(), 5u);
  EXPECT_EQ(index["weight_map"]["a"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["d"], "model-00003-of-00003.safetensors");
}

TEST(PlanShards, PlansOneEmptyFileWithoutTensors) {
  EXPECT_EQ(plan_shards({}, 8).shards.size(), 1u);
}

}  // namespace
}  // namespace xffl::checkpoint
