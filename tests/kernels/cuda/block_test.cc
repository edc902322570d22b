// Reference: the same functions written plainly, by float64 autograd.
#include <torch/autograd.h>

#include <limits>

#include "kernels.h"
#include "xffl/kernels/cuda/kernels.h"

namespace xffl::kernels {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

class BlockKernels : public KernelTest {};

struct NormCase {
  int64_t rows, width, offset;
  bool with_sum;
};

// One element, odd widths, whole packs, rows of more than a block's threads can hold, with and
// without packs; more rows than blocks; addresses that are not multiples of 16.
const NormCase kNormCases[] = {{1, 1, 0, true},     {3, 5, 0, true},    {19, 64, 0, true},
                               {19, 64, 1, true},   {40, 67, 0, false}, {2, 1031, 0, true},
                               {3, 2056, 0, false}, {2, 8224, 0, true}, {3, 4096, 0, true}};

void check_norm(at::ScalarType dtype, const NormCase& c) {
  at::Tensor x = leaf(exact({c.rows, c.width}, dtype, 1)), d = exact({c.rows, c.width}, dtype, 2);
  at::Tensor w = leaf(exact({c.width}, dtype, 3));
  const at::Tensor grad_sum = exact({c.rows, c.width}, dtype, 4);
  const at::Tensor grad_y = exact({c.rows, c.width}, dtype, 5);
  const at::Tensor sum = c.with_sum ? (x + d).to(dtype).to(at::kDouble) : x;
  const at::Tensor inverse = (sum.pow(2).mean(-1, true) + kEpsilon).rsqrt();
  const at::Tensor y = w * (sum * inverse);
  at::Tensor loss = (y * grad_y).sum();
  if (c.with_sum) loss = loss + (sum * grad_sum).sum();
  loss.backward();

  with_type(dtype, [&]<class T>(T) {
    const auto found = stable([&] {
      const auto in = [&](const at::Tensor& t) { return put(t, dtype, c.offset); };
      const auto out = [&] { return place({c.rows, c.width}, dtype, c.offset); };
      const at::Tensor a = in(x), b = c.with_sum ? in(d) : at::Tensor(), weight = in(w);
      const at::Tensor s = c.with_sum ? out() : a, result = out(), grad_x = out();
      const at::Tensor r = place({c.rows}, at::kFloat), grad_w = place({c.width}, at::kFloat);
      const at::Tensor scratch =
          place({rms_norm_scratch_rows(c.rows), c.width}, at::kFloat, c.offset);
      rms_norm<T>(on(), data<T>(a), data<T>(b), data<T>(weight), c.with_sum ? data<T>(s) : nullptr,
                  data<T>(result), data<float>(r), c.rows, c.width, kEpsilon);
      const at::Tensor g = in(grad_y), gs = c.with_sum ? in(grad_sum) : at::Tensor();
      rms_norm_backward<T>(on(), data<T>(g), data<T>(gs), data<T>(s), data<float>(r),
                           data<T>(weight), data<T>(grad_x), data<float>(grad_w),
                           data<float>(scratch), c.rows, c.width);
      return std::vector<at::Tensor>{s, result, r, grad_x, grad_w};
    });
    const at::Tensor expected[] = {sum, y, inverse.squeeze(1), x.grad(), w.grad()};
    for (size_t i = 0; i < found.size(); ++i) {
      // The gradient of one element's norm is almost zero: rounding errors dominate.
      if (c.width == 1 && i >= 3) continue;
      EXPECT_LT(error_of(found[i], expected[i]), i == 2 ? 1e-6 : tolerance(dtype))
          << dtype << ", " << c.rows << " x " << c.width << ", result " << i;
    }
  });
}

TEST_F(BlockKernels, RmsNormAndItsGradients) {
  for (const at::ScalarType dtype : kDtypes)
    for (const NormCase& c : kNormCases) check_norm(dtype, c);
}

// The last size needs several rounds of the largest grid.
constexpr int64_t kSizes[] = {1, 7, 8, 1000, 70001};

TEST_F(BlockKernels, SwigluAndItsGradients) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t size : kSizes) {
      for (const int64_t offset : {0, 1}) {
        at::Tensor gate = leaf(exact({size}, dtype, 1, 4)), up = leaf(exact({size}, dtype, 2));
        const at::Tensor grad = exact({size}, dtype, 3);
        const at::Tensor y = at::silu(gate) * up;
        (y * grad).sum().backward();
        with_type(dtype, [&]<class T>(T) {
          const auto found = stable([&] {
            const at::Tensor a = put(gate, dtype, offset), b = put(up, dtype, offset);
            const at::Tensor g = put(grad, dtype, offset), result = place({size}, dtype, offset);
            swiglu<T>(on(), data<T>(a), data<T>(b), data<T>(result), size);
            swiglu_backward<T>(on(), data<T>(g), data<T>(a), data<T>(b), data<T>(a), data<T>(b),
                               size);  // in place
            return std::vector<at::Tensor>{result, a, b};
          });
          EXPECT_LT(error_of(found[0], y), tolerance(dtype)) << dtype << size;
          EXPECT_LT(error_of(found[1], gate.grad()), tolerance(dtype)) << dtype << size;
          EXPECT_LT(error_of(found[2], up.grad()), tolerance(dtype)) << dtype << size;
        });
      }
    }
  }
}

TEST_F(BlockKernels, SwigluOfExtremesIsFinite) {
  with_type(at::kFloat, [&]<class T>(T) {
    const at::Tensor gate =
        put(at::tensor({-1e30, -100.0, -89.0, 0.0, 100.0}, at::kDouble), at::kFloat);
    const at::Tensor one = at::ones_like(gate), y = at::empty_like(gate);
    const at::Tensor a = at::empty_like(gate), b = at::empty_like(gate);
    swiglu<T>(on(), data<T>(gate), data<T>(one), data<T>(y), 5);
    swiglu_backward<T>(on(), data<T>(one), data<T>(gate), data<T>(one), data<T>(a), data<T>(b), 5);
    const at::Tensor expected = at::tensor({0.0, 0.0, 0.0, 0.0, 100.0}, at::kDouble);
    EXPECT_LT(error_of(y, expected), 1e-6);
    EXPECT_LT(error_of(b, expected), 1e-6);
    EXPECT_LT(error_of(a, at::tensor({0.0, 0.0, 0.0, 0.5, 1.0}, at::kDouble)), 1e-6);
  });
}

struct RopeCase {
  int64_t batch, positions, heads, half, offset;
  bool transposed;
  bool angles_of_tokens = false;
};

void check_rope(at::ScalarType dtype, const RopeCase& c) {
  const int64_t width = 2 * c.half;
  const at::Tensor x = exact({c.batch, c.positions, c.heads, width}, dtype, 1);
  const int64_t tables = c.angles_of_tokens ? c.batch : 1;
  const at::Tensor angle = at::rand({tables, c.positions, 1, c.half}, at::kDouble) * 6;
  const at::Tensor cos = angle.cos().to(dtype), sin = angle.sin().to(dtype);
  const at::Tensor c1 = cos.to(at::kDouble), s1 = sin.to(at::kDouble);
  const at::Tensor first = x.narrow(3, 0, c.half), second = x.narrow(3, c.half, c.half);
  const at::Tensor forth = at::cat({first * c1 - second * s1, second * c1 + first * s1}, 3);
  const at::Tensor back = at::cat({first * c1 + second * s1, second * c1 - first * s1}, 3);
  with_type(dtype, [&]<class T>(T) {
    const auto found = stable([&] {
      const at::Tensor cc = put(cos, dtype, c.offset), ss = put(sin, dtype, c.offset);
      at::Tensor from = put(x, dtype, c.offset);
      if (c.transposed) from = put(x.transpose(1, 2).contiguous(), dtype, c.offset).transpose(1, 2);
      const HeadsShape shape{c.batch,        c.positions,    c.heads,        c.half,
                             from.stride(0), from.stride(1), from.stride(2), tables * c.positions};
      const at::Tensor one = place(x.sizes(), dtype, c.offset);
      const at::Tensor other = c.transposed ? place(x.sizes(), dtype, c.offset) : from;
      rope<T>(on(), data<T>(from), shape, data<T>(cc), data<T>(ss), data<T>(one), 1);
      rope<T>(on(), data<T>(from), shape, data<T>(cc), data<T>(ss), data<T>(other), -1);
      return std::vector<at::Tensor>{one, other};
    });
    EXPECT_LT(error_of(found[0], forth), tolerance(dtype)) << dtype << c.heads << "x" << c.half;
    EXPECT_LT(error_of(found[1], back), tolerance(dtype)) << dtype << c.heads << "x" << c.half;
  });
}

TEST_F(BlockKernels, RopeOfEveryLayout) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const RopeCase& c :
         {RopeCase{1, 1, 1, 1, 0, false}, RopeCase{2, 7, 3, 5, 0, false},
          RopeCase{2, 7, 3, 8, 0, true}, RopeCase{1, 5, 4, 64, 0, false},
          RopeCase{2, 3, 32, 64, 0, true}, RopeCase{2, 3, 2, 33, 0, true},
          RopeCase{2, 3, 2, 32, 1, false}, RopeCase{3, 5, 2, 16, 0, true, true}}) {
      check_rope(dtype, c);
    }
  }
}

constexpr int64_t kIgnore = -100;

std::vector<at::Tensor> run_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                          at::ScalarType dtype, int64_t offset, double scale) {
  std::vector<at::Tensor> found;
  with_type(dtype, [&]<class T>(T) {
    found = stable([&] {
      const int64_t rows = logits.size(0), width = logits.size(1);
      const at::Tensor into = put(logits, dtype, offset), kept = put(logits, dtype, offset);
      const at::Tensor which = labels.to(device());
      const at::Tensor nll = place({rows}, at::kFloat), again = place({rows}, at::kFloat);
      cross_entropy<T>(on(), data<T>(into), data<int64_t>(which), data<float>(nll), rows, width,
                       kIgnore, static_cast<float>(scale), true);
      cross_entropy<T>(on(), data<T>(kept), data<int64_t>(which), data<float>(again), rows, width,
                       kIgnore, 1, false);
      EXPECT_TRUE(kept.equal(put(logits, dtype, offset)) || logits.isnan().any().item<bool>());
      EXPECT_TRUE(bits(nll).equal(bits(again)));
      return std::vector<at::Tensor>{nll, into};
    });
  });
  return found;
}

TEST_F(BlockKernels, CrossEntropyAndItsGradientInPlace) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t width : {1, 2, 7, 32, 1000, 4099, 40000}) {
      for (const int64_t offset : {0, 1}) {
        const int64_t rows = width > 1000 ? 2 : 11;
        at::Tensor logits = leaf(exact({rows, width}, dtype, 1, 3));
        at::Tensor labels = at::randint(width, {rows}, at::kLong);
        labels[1] = kIgnore;
        const at::Tensor nll =
            at::cross_entropy_loss(logits, labels, {}, at::Reduction::None, kIgnore);
        (nll.sum() * 0.25).backward();
        const auto found = run_cross_entropy(logits.detach(), labels, dtype, offset, 0.25);
        EXPECT_LT(error_of(found[0], nll), 2e-6) << dtype << width;
        EXPECT_LT(error_of(found[1], logits.grad()), tolerance(dtype)) << dtype << width;
        EXPECT_EQ(found[1][1].abs().max().item<double>(), 0) << "an ignored row has no gradient";
      }
    }
  }
}

TEST_F(BlockKernels, CrossEntropyOfExtremes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  at::Tensor logits = at::zeros({7, 70}, at::kDouble);
  logits[0].fill_(-30000)[69] = -29000.0;  // certain
  logits[1].fill_(30000)[5] = 31000.0;
  logits[2].fill_(-kInfinity)[3] = -1000.0;  // everything else is masked
  logits[3].narrow(0, 0, 64).fill_(-kInfinity);
  logits[4][69] = NAN;
  logits[5].fill_(-kInfinity);
  logits[6][1] = kInfinity;
  const at::Tensor labels = at::tensor({69, 5, 3, 69, 0, 0, 0}, at::kLong);
  const auto found = run_cross_entropy(logits, labels, at::kFloat, 0, 1);
  for (int row = 0; row < 3; ++row) {
    EXPECT_NEAR(found[0][row].item<double>(), 0, 1e-6);
    EXPECT_LT(found[1][row].abs().max().item<double>(), 1e-6);
  }
  EXPECT_NEAR(found[0][3].item<double>(), std::log(6), 1e-6);
  EXPECT_NEAR(found[1][3][69].item<double>(), 1.0 / 6 - 1, 1e-6);
  EXPECT_EQ(found[1][3][0].item<double>(), 0);
  for (int row = 4; row < 7; ++row)
    EXPECT_FALSE(std::isfinite(found[0][row].item<double>())) << "a loss of nonsense, row " << row;
}

TEST_F(BlockKernels, AccumulateOverwritesThenAdds) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t size : kSizes) {
      const at::Tensor update = exact({size}, dtype, 1);
      with_type(dtype, [&]<class T>(T) {
        const auto found = stable([&] {
          const at::Tensor u = put(update, dtype), sum = place({size}, at::kFloat);
          sum.fill_(NAN);
          accumulate<T>(on(), data<T>(u), data<float>(sum), size, 0.5f, true);
          accumulate<T>(on(), data<T>(u), data<float>(sum), size, 2, false);
          return std::vector<at::Tensor>{sum};
        });
        EXPECT_LT(error_of(found[0], update * 2.5), 1e-6);
      });
    }
  }
}

}  // namespace
}  // namespace xffl::kernels
