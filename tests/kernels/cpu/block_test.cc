// Each set of kernels against the portable one. tests/llama/layers_test.cc compares the fastest set
// with float64 autograd.
#include "xffl/kernels/cpu/block.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "tensors.h"

namespace xffl::kernels {
namespace {

at::Tensor random(at::IntArrayRef shape, int seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return at::randn(shape, at::kDouble);
}

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>() /
         expected.to(at::kDouble).norm().item<double>();
}

template <class T>
class BlockSets : public testing::Test {
 protected:
  static double limit() {
    if (std::is_same_v<T, double>) return 1e-13;
    return std::is_same_v<T, Bf16> ? 1e-3 : 1e-6;
  }
};
using Types = testing::Types<float, double, Bf16>;
TYPED_TEST_SUITE(BlockSets, Types);

template <class T>
at::ScalarType dtype_of() {
  if (std::is_same_v<T, float>) return at::kFloat;
  return std::is_same_v<T, double> ? at::kDouble : at::kBFloat16;
}

template <class T>
at::ScalarType wide_dtype_of() {
  return std::is_same_v<T, double> ? at::kDouble : at::kFloat;
}

TYPED_TEST(BlockSets, EverySetGivesTheSame) {
  using T = TypeParam;
  using W = Wide<T>;
  const std::vector<BlockKernels<T>>& sets = all_block_kernels<T>();
  const at::Tensor x = random({7, 45}, 1).to(dtype_of<T>()), d = random({7, 45}, 2).to(x.dtype());
  const at::Tensor w = random({45}, 3).to(x.dtype());
  std::vector<at::Tensor> expected;
  for (size_t i = 0; i < sets.size(); ++i) {
    at::Tensor sum = at::empty_like(x), y = at::empty_like(x), grad = at::empty_like(x);
    at::Tensor gate = at::empty_like(x), logits = x.clone();
    at::Tensor inverse = at::empty({7}, wide_dtype_of<T>());
    at::Tensor grad_w = at::zeros({45}, inverse.options()), scratch = at::empty_like(grad_w);
    sets[i].rms_norm(data<T>(x), data<T>(d), data<T>(w), data<T>(sum), data<T>(y), data<W>(inverse),
                     7, 45, W(1e-5));
    sets[i].rms_norm_backward(data<T>(d), data<T>(x), data<T>(sum), data<W>(inverse), data<T>(w),
                              data<T>(grad), data<W>(grad_w), 7, 45);
    const W nll = sets[i].cross_entropy(data<T>(logits), 315, 7, W(0.5),
                                        data<W>(at::empty({315}, inverse.options())));
    sets[i].swiglu(data<T>(x), data<T>(d), data<T>(gate), 315);
    const std::vector<at::Tensor> found{
        sum, y, grad, grad_w, logits, gate, at::scalar_tensor(nll, at::kDouble)};
    if (i == 0) expected = found;
    for (size_t j = 0; j < found.size(); ++j)
      EXPECT_LT(error_of(found[j], expected[j]), this->limit()) << "set " << i << ", result " << j;
  }
}

TEST(BlockKernelsOfThisProcessor, SoftmaxOfExtremesIsFinite) {
  for (const float low : {-1e4f, -50.0f, 3e4f}) {
    std::vector<float> logits(19, low), scratch(19);
    logits[18] = low + 200;
    const float nll =
        block_kernels<float>().cross_entropy(logits.data(), 19, 18, 1.0f, scratch.data());
    EXPECT_NEAR(nll, 0, 1e-6);
    for (const float g : logits) EXPECT_LT(std::abs(g), 1e-6);
  }
  std::vector<float> logits(40, 0), scratch(40);
  logits[3] = NAN;
  EXPECT_TRUE(
      std::isnan(block_kernels<float>().cross_entropy(logits.data(), 40, 1, 1.0f, scratch.data())));
}

}  // namespace
}  // namespace xffl::kernels
