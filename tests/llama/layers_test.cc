// Reference: the same functions written plainly, by float64 autograd.
#include "layers.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "attention.h"
#include "on_cpu.h"
#include "pointwise.h"
#include "product.h"

namespace xffl::llama {
namespace {

constexpr double kEpsilon = 1e-5;

double error_of_layer(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>() /
         expected.to(at::kDouble).norm().item<double>();
}

// Float64 products are exact; other dtypes round once or twice.
double tolerance(at::ScalarType type) {
  if (type == at::kDouble) return 1e-12;
  return type == at::kFloat ? 1e-6 : 8e-3;
}

at::Tensor random(at::IntArrayRef shape, int seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return at::randn(shape, at::kDouble);
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& w) {
  return w * (x * (x.pow(2).mean(-1, true) + kEpsilon).rsqrt());
}

// Widths below, at and beyond a vector's, and odd ones; more rows than a block of the sum over
// rows.
class Layers : public testing::TestWithParam<std::tuple<at::ScalarType, int64_t>> {
 protected:
  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  int64_t width() const { return std::get<1>(GetParam()); }
  // A value of the tested dtype, in float64.
  at::Tensor exact(at::IntArrayRef shape, int seed) const {
    return random(shape, seed).to(dtype()).to(at::kDouble);
  }
  Weight weight(const at::Tensor& value) const {
    Weight result;
    result.value = value.to(dtype());
    result.gradient = at::full_like(value, NAN, accumulation_type(dtype()));
    return result;
  }
};

TEST_P(Layers, AddRmsNorm) {
  at::Tensor x = leaf(exact({2, 75, width()}, 1)), delta = leaf(exact({2, 75, width()}, 2));
  at::Tensor w = leaf(exact({width()}, 3));
  const at::Tensor grad_sum = exact({2, 75, width()}, 4), grad_y = exact({2, 75, width()}, 5);
  const at::Tensor sum = x + delta, y = plain_norm(sum, w);
  ((sum * grad_sum).sum() + (y * grad_y).sum()).backward();

  Weight mine = weight(w.detach());
  at::Tensor a = leaf(x.detach().to(dtype())), b = leaf(delta.detach().to(dtype()));
  const SumAndNorm found = add_rms_norm(a, b, mine, kEpsilon);
  torch::autograd::backward({found.sum_BTD, found.normed_BTD},
                            {grad_sum.to(dtype()), grad_y.to(dtype())});
  const double limit = tolerance(dtype());
  EXPECT_LT(error_of_layer(found.sum_BTD, sum), limit);
  EXPECT_LT(error_of_layer(found.normed_BTD, y), limit);
  EXPECT_LT(error_of_layer(a.grad(), x.grad()), limit);
  EXPECT_LT(error_of_layer(b.grad(), delta.grad()), limit);
  EXPECT_LT(error_of_layer(mine.gradient, w.grad()), limit);
}

TEST_P(Layers, RmsNorm) {
  at::Tensor x = leaf(exact({3, 40, width()}, 1)), w = leaf(exact({width()}, 3));
  const at::Tensor grad_y = exact({3, 40, width()}, 5);
  const at::Tensor y = plain_norm(x, w);
  (y * grad_y).sum().backward();

  Weight mine = weight(w.detach());
  at::Tensor a = leaf(x.detach().to(dtype()));
  const at::Tensor found = rms_norm(a, mine, kEpsilon);
  found.backward(grad_y.to(dtype()));
  EXPECT_LT(error_of_layer(found, y), tolerance(dtype()));
  EXPECT_LT(error_of_layer(a.grad(), x.grad()), tolerance(dtype()));
  EXPECT_LT(error_of_layer(mine.gradient, w.grad()), tolerance(dtype()));
}

TEST_P(Layers, Swiglu) {
  at::Tensor gate = leaf(exact({5, 33, width()}, 1) * 4), up = leaf(exact({5, 33, width()}, 2));
  const at::Tensor grad = exact({5, 33, width()}, 3);
  const at::Tensor y = at::silu(gate) * up;
  (y * grad).sum().backward();
  at::Tensor a = leaf(gate.detach().to(dtype())), b = leaf(up.detach().to(dtype()));
  const at::Tensor found = swiglu(a, b);
  found.backward(grad.to(dtype()));
  EXPECT_LT(error_of_layer(found, y), tolerance(dtype()));
  EXPECT_LT(error_of_layer(a.grad(), gate.grad()), tolerance(dtype()));
  EXPECT_LT(error_of_layer(b.grad(), up.grad()), tolerance(dtype()));
}

TEST_P(Layers, LinearsThatReadOneInput) {
  at::Tensor x = leaf(exact({3, 11, width()}, 1));
  std::vector<at::Tensor> w, b, grads, y;
  for (const int i : {0, 1}) {
    w.push_back(leaf(exact({7 + 4 * i, width()}, 2 + i)));
    b.push_back(leaf(exact({7 + 4 * i}, 4 + i)));
    grads.push_back(exact({3, 11, 7 + 4 * i}, 6 + i));
    y.push_back(at::linear(x, w.back(), b.back()));
  }
  torch::autograd::backward(y, grads);
  for (const bool kept : {true, false}) {
    std::vector<Weight> ws{weight(w[0].detach()), weight(w[1].detach())};
    std::vector<Weight> bs{weight(b[0].detach()), weight(b[1].detach())};
    at::Tensor a = leaf(x.detach().to(dtype()));
    InputAgain again;
    if (!kept) again = [values = a.detach().clone()] { return values; };
    const std::vector<at::Tensor> found =
        apply_linears(a, {{&ws[0], &bs[0]}, {&ws[1], &bs[1]}}, again);
    torch::autograd::backward({found[0], found[1]}, {grads[0].to(dtype()), grads[1].to(dtype())});
    const double limit = 2 * tolerance(dtype());
    EXPECT_LT(error_of_layer(a.grad(), x.grad()), limit);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_LT(error_of_layer(found[i], y[i]), limit);
      EXPECT_LT(error_of_layer(ws[i].gradient, w[i].grad()), limit);
      EXPECT_LT(error_of_layer(bs[i].gradient, b[i].grad()), limit);
    }
  }
}

TEST_P(Layers, EmbeddingRowsThatRepeat) {
  at::Tensor table = leaf(exact({9, width()}, 1));
  const at::Tensor rows = at::tensor(std::vector<int64_t>{3, 0, 3, 8, 3}, at::kLong);
  const at::Tensor grad = exact({5, width()}, 2);
  (at::embedding(table, rows) * grad).sum().backward();
  Weight mine = weight(table.detach());
  mine.add_rows(rows, grad.to(dtype()));
  EXPECT_LT(error_of_layer(mine.gradient, table.grad()), tolerance(dtype()));
  mine.add_rows(rows, grad.to(dtype()));
  EXPECT_LT(error_of_layer(mine.gradient, 2 * table.grad()), tolerance(dtype()));
}

// With the layer's dropout mask; the second of two layers has no adapter.
TEST_P(Layers, LinearsWithAnAdapter) {
  for (const double probability : {0.0, 0.4}) {
    const LoraDropout dropout{probability,
                              probability > 0 ? std::optional<uint64_t>(7) : std::nullopt};
    at::Tensor x = leaf(exact({2, 9, width()}, 1)), w = leaf(exact({5, width()}, 2));
    at::Tensor v = leaf(exact({4, width()}, 3)), a = leaf(exact({3, width()}, 4));
    at::Tensor b = leaf(exact({5, 3}, 5));
    const at::Tensor grad_y = exact({2, 9, 5}, 6), grad_z = exact({2, 9, 4}, 7);
    at::Tensor mask = at::ones_like(x, dtype());
    if (probability > 0) {
      at::manual_seed(7 + (11 + 1) * uint64_t{0x9E3779B97F4A7C15u});
      mask.bernoulli_(1 - probability).div_(1 - probability);
    }
    const at::Tensor y =
        at::linear(x, w) + 2 * at::linear(at::linear(x * mask.to(at::kDouble), a), b);
    ((y * grad_y).sum() + (at::linear(x, v) * grad_z).sum()).backward();

    Weight frozen, second = weight(v.detach());
    frozen.value = w.detach().to(dtype());
    Weight down = weight(a.detach()), up = weight(b.detach());
    at::Tensor mine = leaf(x.detach().to(dtype()));
    const std::vector<at::Tensor> found =
        apply_linears(mine, {{&frozen, nullptr, {&down, &up, 2.0, &dropout, 11}}, {&second}});
    torch::autograd::backward({found[0], found[1]}, {grad_y.to(dtype()), grad_z.to(dtype())});
    const double limit = dtype() == at::kBFloat16 ? 2e-2 : tolerance(dtype());
    EXPECT_LT(error_of_layer(found[0], y), limit);
    EXPECT_LT(error_of_layer(mine.grad(), x.grad()), limit);
    EXPECT_LT(error_of_layer(second.gradient, v.grad()), limit);
    EXPECT_LT(error_of_layer(down.gradient, a.grad()), limit);
    EXPECT_LT(error_of_layer(up.gradient, b.grad()), limit);
    EXPECT_FALSE(frozen.gradient.defined());
  }
}

// DoRA with and without dropout and bias; autograd takes the lengths of the rows for constants.
TEST_P(Layers, LinearsWithMagnitudes) {
  for (const double probability : {0.0, 0.4}) {
    for (const bool biased : {false, true}) {
      const LoraDropout dropout{probability,
                                probability > 0 ? std::optional<uint64_t>(7) : std::nullopt};
      at::Tensor x = leaf(exact({2, 9, width()}, 1)), a = leaf(exact({3, width()}, 4));
      at::Tensor b = exact({5, 3}, 5), w = exact({5, width()}, 2);
      // Row 3 of W' is zero: it has no direction, and its result and gradients are 0.
      b[3].zero_();
      w[3].zero_();
      b.requires_grad_(true);
      at::Tensor m = leaf(exact({5}, 8) + 2);
      const at::Tensor bias = biased ? exact({5}, 9) : at::zeros({5}, at::kDouble);
      const at::Tensor grad_y = exact({2, 9, 5}, 6);
      at::Tensor mask = at::ones_like(x, dtype());
      if (probability > 0) {
        at::manual_seed(7 + (11 + 1) * uint64_t{0x9E3779B97F4A7C15u});
        mask.bernoulli_(1 - probability).div_(1 - probability);
      }
      const at::Tensor dropped = x * mask.to(at::kDouble);
      const at::Tensor direction = w + 2 * at::mm(b, a);
      const at::Tensor lengths = direction.detach().norm(2, {1});
      const at::Tensor z = at::linear(dropped, direction);
      const at::Tensor factors = m / lengths.masked_fill(lengths == 0, INFINITY);
      const at::Tensor y = at::linear(x, w, bias) - at::linear(dropped, w) + factors * z;
      (y * grad_y).sum().backward();

      Weight frozen, offset, down = weight(a.detach()), up = weight(b.detach());
      frozen.value = w.to(dtype());
      offset.value = bias.to(dtype());
      Weight magnitudes = weight(m.detach());
      at::Tensor mine = leaf(x.detach().to(dtype()));
      const at::Tensor found = apply_linear(
          mine,
          {&frozen, biased ? &offset : nullptr, {&down, &up, 2.0, &dropout, 11, &magnitudes}});
      found.backward(grad_y.to(dtype()));
      const double limit = dtype() == at::kBFloat16 ? 3e-2 : 2 * tolerance(dtype());
      EXPECT_LT(error_of_layer(found, y), limit);
      EXPECT_LT(error_of_layer(mine.grad(), x.grad()), limit);
      EXPECT_LT(error_of_layer(down.gradient, a.grad()), limit);
      EXPECT_LT(error_of_layer(up.gradient, b.grad()), limit);
      EXPECT_LT(error_of_layer(magnitudes.gradient, m.grad()), limit);
    }
  }
}

// Exactly the base's result, although the magnitudes are rounded to the dtype of the weights.
TEST_P(Layers, AFreshAdapterWithMagnitudesChangesNothing) {
  const at::Tensor x = exact({2, 9, width()}, 1).to(dtype());
  Weight w, a, b, m;
  w.value = exact({5, width()}, 2).to(dtype());
  a.value = exact({3, width()}, 3).to(dtype());
  b.value = at::zeros({5, 3}, dtype());
  const at::ScalarType wide = accumulation_type(dtype());
  m.value = at::linalg_vector_norm(w.value.to(wide), 2, {1}).to(dtype());
  EXPECT_TRUE(apply_linear(x, {&w, nullptr, {&a, &b, 2.0, nullptr, 0, &m}})
                  .equal(apply_linear(x, {&w, nullptr})));
}

// W' is 2 B A here, and each row is a piece of its own. A row's elements are equal, so that its
// direction times x is the root of the number of columns.
TEST(Magnitudes, LengthsOfALargeLayerHaveTheRowsOfTheirPiece) {
  constexpr int64_t kColumns = 1 << 22;
  Weight w, a, b, m;
  w.value = at::zeros({2, kColumns}, at::kFloat);
  a.value = at::ones({1, kColumns}, at::kFloat);
  b.value = at::arange(1, 3, at::kFloat).view({2, 1});
  m.value = at::ones({2}, at::kFloat);
  const at::Tensor y = apply_linear(at::ones({1, 1, kColumns}, at::kFloat),
                                    {&w, nullptr, {&a, &b, 2.0, nullptr, 0, &m}});
  EXPECT_LT(error_of_layer(y.flatten(), at::full({2}, 2048, at::kFloat)), 1e-4) << y;
}

TEST(RopeTables, OfAnyLengthHaveTheSameRows) {
  const at::Tensor frequencies = rope_frequencies({checkpoint::RopeKind::kDefault, 10000.0}, 6);
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat);
  const RopeTable longest = make_rope_table(frequencies, 50'021, options);
  for (const int64_t count : {1, 7, 129, 30'011}) {
    const RopeTable own = make_rope_table(frequencies, count, options);
    const RopeTable part = first_positions(longest, count);
    EXPECT_TRUE(part.cos_TF.equal(own.cos_TF) && part.sin_TF.equal(own.sin_TF)) << count;
  }
}

TEST_P(Layers, Rope) {
  const int64_t half = width();
  const at::Tensor frequencies =
      rope_frequencies({checkpoint::RopeKind::kDefault, 100.0}, 2 * half);
  const RopeTable table = make_rope_table(frequencies, 11, at::TensorOptions().dtype(dtype()));
  const at::Tensor cos = table.cos_TF.to(at::kDouble).repeat({1, 2}).unsqueeze(1);
  const at::Tensor sin = table.sin_TF.to(at::kDouble).repeat({1, 2}).unsqueeze(1);
  at::Tensor x = leaf(exact({2, 11, 3, 2 * half}, 1));
  const at::Tensor grad = exact({2, 11, 3, 2 * half}, 2);
  const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  const at::Tensor y = x * cos + turned * sin;
  (y * grad).sum().backward();
  at::Tensor a = leaf(x.detach().to(dtype()));
  const at::Tensor found = apply_rope(a, table);
  found.backward(grad.to(dtype()));
  EXPECT_LT(error_of_layer(found, y), tolerance(dtype()));
  EXPECT_LT(error_of_layer(a.grad(), x.grad()), tolerance(dtype()));
}

// fp16 has no kernels: ATen computes it.
INSTANTIATE_TEST_SUITE_P(Dtypes, Layers,
                         testing::Combine(testing::Values(at::kDouble, at::kFloat, at::kBFloat16,
                                                          at::kHalf),
                                          testing::Values(1, 5, 16, 24, 67)));

struct AttentionCase {
  int64_t batch, positions, heads, kv_heads, head_dim;
};

// Documents of 1, 2, 3 ... tokens, with a different first length in each sequence.
Documents some_documents(int64_t batch, int64_t positions) {
  const at::Tensor starts_BT = at::zeros({batch, positions}, at::kLong);
  for (int64_t b = 0; b < batch; ++b) {
    int64_t length = b + 1, start = 0;
    for (int64_t t = 0; t < positions; ++t) {
      if (t == start + length) {
        start = t;
        ++length;
      }
      starts_BT[b][t] = start;
    }
  }
  return {starts_BT};
}

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Documents& documents) {
  const int64_t t = q.size(1), group = q.size(2) / k.size(2);
  const at::Tensor kk = k.repeat_interleave(group, 2).transpose(1, 2);
  const at::Tensor vv = v.repeat_interleave(group, 2).transpose(1, 2);
  const at::Tensor scores =
      at::matmul(q.transpose(1, 2), kk.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor hidden = at::ones({t, t}, at::kBool).triu(1);
  if (documents.defined()) {
    const at::Tensor before = at::arange(t, at::kLong).lt(documents.starts_BT.unsqueeze(2));
    hidden = hidden.logical_or(before).unsqueeze(1);
  }
  return at::matmul(at::softmax(scores.masked_fill(hidden, -INFINITY), 3), vv).transpose(1, 2);
}

using AttentionOf = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                   const Documents&);

void expect_equals_plain_autograd(AttentionOf attention, at::ScalarType dtype,
                                  const AttentionCase& c, const Documents& documents) {
  const auto make = [&](int64_t heads, int seed) {
    return random({c.batch, c.positions, heads, c.head_dim}, seed).to(dtype).to(at::kDouble);
  };
  at::Tensor q = leaf(make(c.heads, 1)), k = leaf(make(c.kv_heads, 2)),
             v = leaf(make(c.kv_heads, 3));
  const at::Tensor grad = make(c.heads, 4);
  const at::Tensor y = plain_attention(q, k, v, documents);
  (y * grad).sum().backward();
  at::Tensor q2 = leaf(q.detach().to(dtype)), k2 = leaf(k.detach().to(dtype));
  at::Tensor v2 = leaf(v.detach().to(dtype));
  const at::Tensor found = attention(q2, k2, v2, documents);
  found.backward(grad.to(dtype));
  const double limit = 3 * tolerance(dtype);
  EXPECT_LT(error_of_layer(found, y), limit) << c.positions;
  EXPECT_LT(error_of_layer(v2.grad(), v.grad()), limit) << c.positions;
  if (c.positions == 1) return;  // the gradient is rounding errors only
  EXPECT_LT(error_of_layer(q2.grad(), q.grad()), limit) << c.positions;
  EXPECT_LT(error_of_layer(k2.grad(), k.grad()), limit) << c.positions;
}

class Attention : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Attention, EqualsPlainAutograd) {
  if (kernels::block_kernels<float>().attention == nullptr)
    GTEST_SKIP() << "this processor has no AVX-512: attention is ATen's";
  for (const AttentionCase& c : {AttentionCase{2, 13, 4, 2, 10}, AttentionCase{1, 64, 3, 3, 16},
                                 AttentionCase{1, 97, 4, 1, 48}, AttentionCase{2, 1, 2, 2, 7},
                                 AttentionCase{1, 40, 2, 1, 130}}) {
    expect_equals_plain_autograd(causal_attention, GetParam(), c, {});
    expect_equals_plain_autograd(causal_attention, GetParam(), c,
                                 some_documents(c.batch, c.positions));
  }
  // A document longer than a block, after short documents.
  Documents documents = some_documents(2, 150);
  documents.starts_BT.narrow(1, 45, 105).fill_(45);
  expect_equals_plain_autograd(causal_attention, GetParam(), {2, 150, 4, 2, 16}, documents);
}

TEST(AttentionByAten, EqualsPlainAutograd) {
  const AttentionCase c{2, 29, 4, 2, 10};
  expect_equals_plain_autograd(causal_attention_by_aten, at::kDouble, c, {});
  expect_equals_plain_autograd(causal_attention_by_aten, at::kDouble, c, some_documents(2, 29));
  expect_equals_plain_autograd(causal_attention_by_aten, at::kDouble, c,
                               within_window({}, /*window=*/5, 2, 29));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Attention,
                         testing::Values(at::kDouble, at::kFloat, at::kBFloat16));

TEST(Accumulate, OverwritesThenAdds) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor update = random({37}, 1).to(dtype);
    at::Tensor sum = at::full({37}, NAN, accumulation_type(dtype));
    accumulate(sum, update, 0.5, true);
    accumulate(sum, update, 2, false);
    EXPECT_LT(error_of_layer(sum, update.to(at::kDouble) * 2.5), 1e-6);
  }
}

// All strides are correct on every processor.
TEST(OnednnLinear, TakesFactorsOfAnyStrides) {
  const at::Tensor x = random({40, 24}, 1).to(at::kFloat), w = random({70, 24}, 2).to(at::kFloat);
  if (!onednn_is_faster(x)) GTEST_SKIP() << "not an AMD processor with AVX-512: MKL multiplies";
  const at::Tensor g = random({40, 70}, 3).to(at::kFloat), bias = random({70}, 4).to(at::kFloat);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  EXPECT_LT(error_of_layer(onednn_linear(x, w, bias), at::linear(wide(x), wide(w), wide(bias))),
            1e-6);
  EXPECT_LT(error_of_layer(onednn_linear(g, w.t(), {}), at::mm(wide(g), wide(w))), 1e-6);
  EXPECT_LT(error_of_layer(onednn_linear(g.t(), x.t(), {}), at::mm(wide(g).t(), wide(x))), 1e-6);
}

}  // namespace
}  // namespace xffl::llama
