// Each set's attention against that of the first set that has one. tests/llama/layers_test.cc
// compares the fastest set's attention with plain autograd.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "tensors.h"
#include "xffl/kernels/cpu/block.h"

namespace xffl::kernels {
namespace {

constexpr int64_t kTokens = 77, kGroup = 2, kKvHeads = 3;

struct Attended {
  at::Tensor out, grad_q, grad_k, grad_v;
  std::vector<at::Tensor> all() const { return {out, grad_q, grad_k, grad_v}; }
};

template <class T>
Attended attend(const BlockKernels<T>& kernels, int64_t head_dim, const int64_t* starts,
                at::ScalarType dtype) {
  using W = Wide<T>;
  at::manual_seed(9);
  const auto random = [&](int64_t heads) {
    return at::randn({kTokens, heads, head_dim}, at::kDouble).to(dtype);
  };
  const at::Tensor q = random(kKvHeads * kGroup), k = random(kKvHeads), v = random(kKvHeads);
  const at::Tensor grad = random(kKvHeads * kGroup);
  Attended result{at::empty_like(q), at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const AttentionShape shape{
      kTokens, kGroup, head_dim, kKvHeads * kGroup * head_dim, kKvHeads * head_dim, starts};
  std::vector<W> scratch(static_cast<size_t>(attention_scratch_size(shape)));
  std::vector<W> log_sums(kGroup * kTokens);
  const W scale = W(0.3);
  for (int64_t head = 0; head < kKvHeads; ++head) {
    const int64_t kv = head * head_dim, of_q = kv * kGroup;
    const AttentionTensors<T> tensors{data<T>(q) + of_q,
                                      data<T>(k) + kv,
                                      data<T>(v) + kv,
                                      data<T>(result.out) + of_q,
                                      data<T>(grad) + of_q,
                                      log_sums.data(),
                                      data<T>(result.grad_q) + of_q,
                                      data<T>(result.grad_k) + kv,
                                      data<T>(result.grad_v) + kv};
    kernels.attention(tensors.q, tensors.k, tensors.v, data<T>(result.out) + of_q, log_sums.data(),
                      shape, scale, scratch.data(), kernels.multiply);
    kernels.attention_backward(tensors, shape, scale, scratch.data(), kernels.multiply);
  }
  return result;
}

template <class T>
void expect_sets_agree(at::ScalarType dtype, double tolerance) {
  const std::vector<BlockKernels<T>>& sets = all_block_kernels<T>();
  std::vector<int64_t> starts(kTokens, 0);
  for (int64_t t = 7; t < kTokens; ++t) starts[static_cast<size_t>(t)] = t < 50 ? 7 : 50;
  for (const int64_t head_dim : {10, 48, 64}) {
    for (const int64_t* documents : std::vector<const int64_t*>{nullptr, starts.data()}) {
      std::vector<at::Tensor> expected;
      for (size_t i = 0; i < sets.size(); ++i) {
        if (sets[i].attention == nullptr) continue;
        const std::vector<at::Tensor> found = attend(sets[i], head_dim, documents, dtype).all();
        if (expected.empty()) expected = found;
        for (size_t j = 0; j < found.size(); ++j) {
          const at::Tensor want = expected[j].to(at::kDouble);
          EXPECT_LT((found[j].to(at::kDouble) - want).norm().item<double>(),
                    tolerance * want.norm().item<double>())
              << "set " << i << ", result " << j << ", head_dim " << head_dim;
        }
      }
    }
  }
}

TEST(AttentionSets, AllGiveTheSame) {
  if (block_kernels<float>().attention == nullptr)
    GTEST_SKIP() << "this processor has no AVX-512: attention is ATen's";
  expect_sets_agree<float>(at::kFloat, 1e-6);
  expect_sets_agree<double>(at::kDouble, 1e-14);
  expect_sets_agree<Bf16>(at::kBFloat16, 6e-3);
}

}  // namespace
}  // namespace xffl::kernels
