// The sizes that `xffl plan` and `xffl doctor` compare with disks.
#include "xffl/facility/model_bytes.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace xffl::facility {
namespace {

TEST(ModelBytes, WithLoraHaveTheModelUnderTheAdapter) {
  const test::TempDir dir;
  test::write_tiny_model(dir / "model", test::kTinyRows, [](size_t) { return 1.0f; });
  constexpr uint64_t kModel = 2 * (16 * 8 + 12 * 8 + 8);
  config::Experiment experiment;
  experiment.facilities.emplace_back();
  experiment.aggregation.update_dtype = job::FloatType::kFloat32;
  const ModelBytes without = model_bytes(experiment, dir / "model");
  EXPECT_EQ(without.published, kModel);
  EXPECT_EQ(without.update, 2 * kModel) << "in float32";
  EXPECT_EQ(without.master, 2 * kModel) << "in float32";
  EXPECT_EQ(without.adapted, 0u);
  experiment.facilities.front().training.lora = {2, 8, 0, {"q_proj"}};
  const ModelBytes with = model_bytes(experiment, dir / "model");
  EXPECT_EQ(with.published, 2u * (2 * 8 + 8 * 2)) << "A and B of one layer";
  EXPECT_EQ(with.adapted, kModel);
}

}  // namespace
}  // namespace xffl::facility
