#include <gtest/gtest.h>
#include <torch/types.h>

#include "xffl/llama/weight.h"

namespace xffl::llama {
namespace {

TEST(EmbeddingRows, BothWaysGiveTheSameBits) {
  at::manual_seed(3);
  for (const auto& [rows, different] : {std::pair{1, 1}, {40, 3}, {300, 200}, {64, 1}}) {
    const at::Tensor rows_N = at::randint(different, {rows}, at::kLong).mul_(2);
    const at::Tensor update_ND = at::randn({rows, 24}).to(at::kBFloat16);
    const at::Tensor one = at::randn({2 * different, 24}).to(at::kBFloat16);
    const at::Tensor other = one.clone();
    add_narrow_rows(one, rows_N, update_ND);
    add_narrow_rows_at_once(other, rows_N, update_ND);
    EXPECT_TRUE(one.equal(other)) << rows << " rows";
  }
}

TEST(EmbeddingRows, SumsOfRepeatedRowsDoNotStall) {
  const at::Tensor gradient = at::zeros({2, 4}, at::kBFloat16);
  add_narrow_rows_at_once(gradient, at::ones({4096}, at::kLong),
                          at::ones({4096, 4}, at::kBFloat16));
  EXPECT_TRUE(gradient[1].eq(4096).all().item<bool>());
  EXPECT_TRUE(gradient[0].eq(0).all().item<bool>());
}

}  // namespace
}  // namespace xffl::llama
