// Reference: each document of a packed sequence by itself.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "model_steps.h"
#include "small_model.h"
#include "xffl/base/error.h"
#include "xffl/llama/model.h"
#include "xffl/llama/rope.h"

namespace xffl::llama {
namespace {

// Documents of these lengths one after the other; a document across the border of two sequences is
// split there.
constexpr int64_t kLengths[2][5] = {{5, 1, 40, 7, 17}, {33, 2, 3, 31, 1}};
constexpr int64_t kPositions = 70;

struct Packed {
  at::Tensor tokens_BT, labels_BT;
  Documents documents;
};

Packed make_packed(int64_t vocab_size) {
  at::manual_seed(5);
  Packed packed{at::randint(vocab_size, {2, kPositions}, at::kLong),
                at::randint(vocab_size, {2, kPositions}, at::kLong),
                {at::zeros({2, kPositions}, at::kLong)}};
  for (int64_t b = 0; b < 2; ++b) {
    int64_t start = 0;
    for (const int64_t length : kLengths[b]) {
      packed.documents.starts_BT[b].narrow(0, start, length).fill_(start);
      start += length;
      packed.labels_BT[b][start - 1] = kIgnoreLabel;
    }
  }
  return packed;
}

// Loss and gradients of all documents, each a micro-batch of its own.
double run_one_by_one(Model& model, const Packed& packed) {
  double loss = 0;
  for (int64_t b = 0; b < 2; ++b) {
    int64_t start = 0;
    for (const int64_t length : kLengths[b]) {
      const auto part = [&](const at::Tensor& x_BT) {
        return x_BT.narrow(0, b, 1).narrow(1, start, length).contiguous();
      };
      loss += accumulate_gradients(model, part(packed.tokens_BT), part(packed.labels_BT), 0.5)
                  .item<double>();
      start += length;
    }
  }
  return loss;
}

// `window`: 0: attention sees the whole document.
void expect_packed_equals_documents(at::ScalarType dtype, Recompute recompute, double tolerance,
                                    int64_t window = 0) {
  checkpoint::LlamaConfig config = small_config();
  config.rope.theta = 100;
  if (window > 0) config.sliding_window = window;
  const std::vector<at::Tensor> values = random_values(parameter_specs(config));
  const Packed packed = make_packed(config.vocab_size);
  std::vector<Weight> alone = weights_of(values, dtype), together = weights_of(values, dtype);
  ModelOptions options;
  options.recompute = recompute;
  Model one_by_one(config, alone), whole(config, together, options);
  clear_gradients(one_by_one);
  clear_gradients(whole);
  const double expected = run_one_by_one(one_by_one, packed);
  const double found =
      accumulate_gradients(whole, packed.tokens_BT, packed.labels_BT, 0.5, packed.documents)
          .item<double>();
  EXPECT_NEAR(found / expected, 1, tolerance);
  for (size_t i = 0; i < alone.size(); ++i) {
    const at::Tensor want = alone[i].gradient;
    const double error =
        (together[i].gradient - want).norm().item<double>() / want.norm().item<double>();
    EXPECT_LT(error, tolerance) << i;
  }
  const at::Tensor nll_BT = nll(whole, packed.tokens_BT, packed.labels_BT, packed.documents);
  EXPECT_NEAR(nll_BT.sum().item<double>() / expected, 1, std::max(tolerance, 1e-6));
  const double unmasked =
      nll(whole, packed.tokens_BT, packed.labels_BT).sum().item<double>() / expected;
  EXPECT_GT(std::fabs(unmasked - 1), 1e-3) << "the mask should matter";
}

TEST(Documents, PackedEqualsSeparateDocuments) {
  expect_packed_equals_documents(at::kDouble, Recompute::kNone, 1e-9);
  expect_packed_equals_documents(at::kFloat, Recompute::kNone, 1e-5);
}

TEST(Documents, PackedEqualsSeparateDocumentsWithRecomputation) {
  expect_packed_equals_documents(at::kDouble, Recompute::kCheap, 1e-9);
  expect_packed_equals_documents(at::kDouble, Recompute::kFull, 1e-9);
}

TEST(Documents, PackedEqualsSeparateDocumentsInAWindow) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kCheap})
    expect_packed_equals_documents(at::kDouble, recompute, 1e-9, /*window=*/6);
}

TEST(Documents, AWindowShortensTheViewOfADocument) {
  const auto starts = [](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).view({1, 7});
  };
  const at::Tensor both_BT = within_window({starts({0, 0, 0, 3, 3, 3, 3})}, 3, 1, 7).starts_BT;
  EXPECT_TRUE(both_BT.equal(starts({0, 0, 0, 3, 3, 3, 4}))) << both_BT;
  EXPECT_FALSE(within_window({}, 7, 1, 7).defined());
}

// A dtype without kernels: ATen's attention computes each document by itself.
TEST(Documents, HalfPrecisionStaysWithinItsRounding) {
  expect_packed_equals_documents(at::kHalf, Recompute::kNone, 3e-2);
  expect_packed_equals_documents(at::kBFloat16, Recompute::kNone, 1e-1);
}

TEST(Documents, OneDocumentPerSequenceEqualsNoMask) {
  const checkpoint::LlamaConfig config = small_config();
  const Packed packed = make_packed(config.vocab_size);
  Model model(config, weights_of(random_values(parameter_specs(config)), at::kFloat));
  const Documents whole{at::zeros({2, kPositions}, at::kLong)};
  EXPECT_TRUE(model.hidden(packed.tokens_BT, whole).equal(model.hidden(packed.tokens_BT)));
}

TEST(Documents, RejectsAnotherShape) {
  const checkpoint::LlamaConfig config = small_config();
  const Packed packed = make_packed(config.vocab_size);
  Model model(config, weights_of(random_values(parameter_specs(config)), at::kFloat));
  for (const at::Tensor& wrong :
       {at::zeros({2, kPositions + 1}, at::kLong), at::zeros({2, kPositions}, at::kInt),
        at::zeros({kPositions, 2}, at::kLong).t()})
    EXPECT_THROW(model.hidden(packed.tokens_BT, {wrong}), Error);
}

}  // namespace
}  // namespace xffl::llama
