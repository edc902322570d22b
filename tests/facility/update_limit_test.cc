#include <gtest/gtest.h>

#include "site.h"

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

}  // namespace
}  // namespace xffl::facility
