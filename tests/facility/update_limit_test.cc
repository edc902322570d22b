#include <gtest/gtest.h>

#include <cmath>

#include "site.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "support/tiny_model.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::facility {
namespace {

// The dtype of an update may be float32, whatever the model's is.
TEST(MaxUpdateBytes, AllowsFloat32AndTheOtherFiles) {
  constexpr uint64_t kMiB = 1u << 20;
  EXPECT_EQ(max_update_bytes({}), 64 * kMiB);
  EXPECT_EQ(max_update_bytes({{"head", checkpoint::Dtype::kBF16, {128256, 4096}},
                              {"norm", checkpoint::Dtype::kF32, {4096}}}),
            64 * kMiB + 4 * (128256ull * 4096 + 4096));
}

// policy.max_change is relative to the input model of each round.
TEST(ModelNorms, AreThoseOfTheGivenModel) {
  const test::TempDir dir;
  const auto model = [&](int round) { return dir / ("model" + std::to_string(round)); };
  for (const int round : {1, 2})
    test::write_tiny_model(model(round), test::kTinyRows,
                           [round](size_t) { return static_cast<float>(round); });
  const double norm = std::sqrt(16 * 8 + 12 * 8 + 8);  // of as many ones
  ModelNorms norms;
  for (const int round : {1, 2, 1})
    EXPECT_NEAR(norms.of(model(round), {}), round * norm, 1e-6) << round;
}

// Once the model is made again, its own norm limits the updates.
TEST(ModelNorms, ADamagedModelHasNone) {
  const test::TempDir dir;
  const auto write = [&](float value) {
    test::write_tiny_model(dir / "model", test::kTinyRows, [value](size_t) { return value; });
  };
  write(2.0f);
  const double norm = ModelNorms().of(dir / "model", {});
  EXPECT_GT(norm, 0);
  ModelNorms norms;
  write_file_atomic(dir / "model/model.safetensors", "damaged");
  EXPECT_EQ(test::kind_of([&] { norms.of(dir / "model", {}); }), ErrorKind::kCorrupt);
  write(2.0f);
  EXPECT_EQ(norms.of(dir / "model", {}), norm);
}

}  // namespace
}  // namespace xffl::facility
