// Reference: plain autograd over the whole logits, in float64.
#include "xffl/llama/head_loss.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "xffl/base/error.h"

namespace xffl::llama {
namespace {

struct Case {
  at::Tensor x_ND, w_VD, labels_N;
};

Case make_case(int64_t rows, int64_t vocab_size, bool with_ignored) {
  at::manual_seed(7);
  Case result{at::randn({rows, 24}, at::kDouble), at::randn({vocab_size, 24}, at::kDouble) * 0.3,
              at::randint(vocab_size, {rows}, at::kLong)};
  if (with_ignored) result.labels_N.masked_fill_(at::rand({rows}) < 0.3, kIgnoreLabel);
  return result;
}

struct Reference {
  double nll_sum;
  at::Tensor grad_x_ND, grad_w_VD;
};

Reference reference(const Case& c, double scale) {
  at::Tensor x = c.x_ND.clone().requires_grad_(true);
  at::Tensor w = c.w_VD.clone().requires_grad_(true);
  const at::Tensor loss =
      at::cross_entropy_loss(at::linear(x, w), c.labels_N, {}, at::Reduction::Sum, kIgnoreLabel);
  (loss * scale).backward();
  return {loss.item<double>(), x.grad(), w.grad()};
}

double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).norm().item<double>() / expected.norm().item<double>();
}

void expect_equal(const Case& c, at::ScalarType dtype, double tolerance) {
  const double scale = 0.125;
  const Reference expected = reference(c, scale);
  Weight head;
  head.value = c.w_VD.to(dtype);
  head.gradient = at::full_like(c.w_VD, NAN, dtype == at::kDouble ? at::kDouble : at::kFloat);
  const HeadLoss found = head_loss(c.x_ND.to(dtype), head, c.labels_N, scale);
  EXPECT_NEAR(found.nll_sum.item<double>() / expected.nll_sum, 1, tolerance);
  EXPECT_LT(relative_error(found.grad_x_ND, expected.grad_x_ND), tolerance);
  EXPECT_LT(relative_error(head.gradient, expected.grad_w_VD), tolerance);
  // A second pass adds.
  head_loss(c.x_ND.to(dtype), head, c.labels_N, scale);
  EXPECT_LT(relative_error(head.gradient, 2 * expected.grad_w_VD), tolerance);
}

TEST(HeadLoss, EqualsAutogradOverWholeLogits) {
  expect_equal(make_case(37, 50, false), at::kDouble, 1e-12);
  expect_equal(make_case(37, 50, true), at::kDouble, 1e-12);
  expect_equal(make_case(37, 50, true), at::kFloat, 1e-5);
}

TEST(HeadLoss, SeveralChunksAndBlocksEqualAutograd) {
  const auto expect_chunks = [](int64_t rows, int64_t vocab_size, at::ScalarType dtype,
                                double tolerance) {
    const Case c = make_case(rows, vocab_size, true);
    const int64_t targets = c.labels_N.ne(kIgnoreLabel).sum().item<int64_t>();
    EXPECT_GT(targets, head_chunk_rows(at::kCPU, targets, vocab_size)) << "one chunk only";
    expect_equal(c, dtype, tolerance);
  };
  expect_chunks(900, 70000, at::kDouble, 1e-12);  // 479 rows a chunk, 3 rows a block
  expect_chunks(6500, 40, at::kFloat, 1e-5);      // 2048 rows a chunk
}

TEST(HeadLoss, Bf16StaysWithinItsRounding) {
  expect_equal(make_case(300, 200, true), at::kBFloat16, 2e-2);
}

TEST(HeadLoss, NllOfFp16HasTheLabelsOfItsBlocks) {
  const Case c = make_case(20, 70'000, false);  // 3 rows a block
  const at::Tensor expected_N = at::cross_entropy_loss(at::linear(c.x_ND, c.w_VD), c.labels_N, {},
                                                       at::Reduction::None, kIgnoreLabel);
  const at::Tensor nll_N = head_nll(c.x_ND.to(at::kHalf), c.w_VD.to(at::kHalf), c.labels_N);
  EXPECT_LT(relative_error(nll_N, expected_N), 1e-2);
}

TEST(HeadLoss, RejectsLabelsBeyondTheVocabulary) {
  for (const int64_t label : {int64_t{11}, int64_t{-1}}) {
    Case c = make_case(5, 11, false);
    c.labels_N[2] = label;
    Weight head;
    head.value = c.w_VD;
    head.gradient = at::zeros_like(c.w_VD);
    EXPECT_THROW(head_loss(c.x_ND, head, c.labels_N, 1), Error);
    EXPECT_THROW(head_nll(c.x_ND, c.w_VD, c.labels_N), Error);
  }
}

TEST(HeadLoss, NoTargetsGiveZeros) {
  Case c = make_case(5, 11, false);
  c.labels_N.fill_(kIgnoreLabel);
  Weight head;
  head.value = c.w_VD;
  head.gradient = at::full_like(c.w_VD, NAN);
  const HeadLoss found = head_loss(c.x_ND, head, c.labels_N, 1);
  head.finish();
  EXPECT_EQ(found.nll_sum.item<double>(), 0);
  EXPECT_EQ(found.grad_x_ND.abs().max().item<double>(), 0);
  EXPECT_EQ(head.gradient.abs().max().item<double>(), 0);
}

// The targets of a GPU's batches, which spare the host a wait.
TEST(HeadLoss, KnownTargetsGiveTheSameBits) {
  for (const bool ignored : {false, true}) {
    const Case c = make_case(90, 60, ignored);
    HeadLoss found[2];
    Weight heads[2];
    for (const bool known : {false, true}) {
      Weight& head = heads[known];
      head.value = c.w_VD;
      head.gradient = at::zeros_like(c.w_VD);
      Targets targets;
      if (known) {
        const at::Tensor rows_M = c.labels_N.ne(kIgnoreLabel).nonzero().squeeze(1);
        targets = {rows_M.size(0), ignored ? rows_M : at::Tensor()};
      }
      found[known] = head_loss(c.x_ND, head, c.labels_N, 0.5, nullptr, targets);
    }
    EXPECT_TRUE(found[0].nll_sum.equal(found[1].nll_sum));
    EXPECT_TRUE(found[0].grad_x_ND.equal(found[1].grad_x_ND));
    EXPECT_TRUE(heads[0].gradient.equal(heads[1].gradient));
  }
}

// Reference: torch.argmax, which takes the first of equal logits.
TEST(HeadLoss, HitsAreTheLabelsWithTheLargestLogit) {
  constexpr int64_t kRows = 2100;  // a chunk has 2048
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool ignored : {false, true}) {
      Case c = make_case(kRows, 1300, ignored);
      // Small whole numbers: the logits are exact in every dtype, and many are equal.
      c.x_ND = at::randint(-2, 3, {kRows, 24}, at::kDouble);
      c.w_VD = at::randint(-2, 3, {1300, 24}, at::kDouble);
      Weight head;
      head.value = c.w_VD.to(dtype);
      head.gradient = at::zeros_like(c.w_VD, dtype == at::kDouble ? at::kDouble : at::kFloat);
      const at::Tensor logits_NV = at::linear(c.x_ND.to(dtype), head.value);
      const at::Tensor best_N = logits_NV.argmax(1);
      // Half of the labels are the best ones, some a later one of equal logits.
      const at::Tensor half_N = c.labels_N.ge(0).logical_and(at::rand({kRows}).lt(0.5));
      c.labels_N = at::where(half_N, best_N, c.labels_N);
      const at::Tensor last_N = 1299 - logits_NV.flip(1).argmax(1);
      c.labels_N.slice(0, 0, 40).copy_(last_N.slice(0, 0, 40));
      const at::Tensor want_N = c.labels_N.eq(best_N);
      at::Tensor hits_N;
      head_nll(c.x_ND.to(dtype), head.value, c.labels_N, &hits_N);
      EXPECT_TRUE(hits_N.to(at::kBool).equal(want_N)) << dtype;
      EXPECT_GT(want_N.sum().item<int64_t>(), 100);
      const HeadLoss found = head_loss(c.x_ND.to(dtype), head, c.labels_N, 1);
      EXPECT_EQ(found.hits.item<double>(), static_cast<double>(want_N.sum().item<int64_t>()));
    }
  }
}

TEST(HeadLoss, NllPerLabelSumsToTheLoss) {
  for (const int64_t rows : {90, 6500}) {  // one chunk, three chunks
    const Case c = make_case(rows, 40, true);
    const at::Tensor nll_N = head_nll(c.x_ND, c.w_VD, c.labels_N);
    EXPECT_NEAR(nll_N.sum().item<double>() / reference(c, 1).nll_sum, 1, 1e-12);
    EXPECT_EQ(nll_N.masked_select(c.labels_N.eq(kIgnoreLabel)).abs().sum().item<double>(), 0);
    const at::Tensor each_N = at::cross_entropy_loss(at::linear(c.x_ND, c.w_VD), c.labels_N, {},
                                                     at::Reduction::None, kIgnoreLabel);
    EXPECT_LT(relative_error(nll_N, each_N), 1e-12);
  }
}

}  // namespace
}  // namespace xffl::llama
