// Reference: at::_fused_adamw_ in float64 on the CPU; bit patterns for masters in two parts.
#include <array>
#include <cmath>

#include "kernels.h"
#include "xffl/kernels/cuda/kernels.h"

namespace xffl::kernels {
namespace {

class OptimizerKernels : public KernelTest {};

// Products are inexact. Epsilon is large enough to show in float32.
constexpr AdamwNumbers kNumbers{0.01, 0.9, 0.95, 1e-3, 0.1, 0.37, 1};

at::Tensor gradient_of_step(int64_t size, int step) {
  return exact({size}, at::kFloat, 100 + step, 0.3);
}

AdamwNumbers numbers_of_step(int step) {
  AdamwNumbers numbers = kNumbers;
  numbers.step = step;
  numbers.learning_rate = 0.01 / step;
  return numbers;
}

at::Tensor reference_masters(const at::Tensor& start, int steps) {
  std::vector<at::Tensor> w{start.clone()}, m{at::zeros_like(start)}, v{at::zeros_like(start)};
  for (int step = 1; step <= steps; ++step) {
    const std::vector<at::Tensor> g{gradient_of_step(start.numel(), step) *
                                    kNumbers.gradient_factor};
    const AdamwNumbers n = numbers_of_step(step);
    at::_fused_adamw_(w, g, m, v, {}, {at::full({}, step, at::kFloat)}, n.learning_rate, n.beta1,
                      n.beta2, n.weight_decay, n.epsilon, false, false);
  }
  return w[0];
}

TEST_F(OptimizerKernels, AdamwTracksTorchsAndRefreshesTheCopy) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t size : {1, 7, 1000, 70001}) {
      for (const int64_t offset : {0, 1}) {
        const at::Tensor start = exact({size}, at::kFloat, 1);
        with_type(dtype, [&]<class T>(T) {
          const auto found = stable([&] {
            const at::Tensor w = put(start, at::kFloat, offset),
                             copy = place({size}, dtype, offset);
            const at::Tensor m = at::zeros_like(w), v = at::zeros_like(w);
            for (int step = 1; step <= 5; ++step) {
              const at::Tensor g = put(gradient_of_step(size, step), at::kFloat, offset);
              adamw(on(), WideMaster<T>{data<float>(w), data<T>(copy)}, data<float>(g),
                    data<float>(m), data<float>(v), size, numbers_of_step(step));
            }
            return std::vector<at::Tensor>{w, copy};
          });
          EXPECT_LT(error_of(found[0], reference_masters(start, 5)), 1e-6) << dtype << size;
          EXPECT_TRUE(bits(found[1]).equal(bits(found[0].to(dtype)))) << dtype << size;
        });
      }
    }
  }
}

TEST_F(OptimizerKernels, AdamwNeedsNoCopy) {
  const at::Tensor w = put(exact({9}, at::kFloat, 1), at::kFloat), g = at::ones_like(w);
  const at::Tensor m = at::zeros_like(w), v = at::zeros_like(w), before = w.clone();
  adamw(on(), WideMaster<float>{data<float>(w), nullptr}, data<float>(g), data<float>(m),
        data<float>(v), 9, {0.1, 0.9, 0.95, 1e-8, 0, 1, 1});
  EXPECT_LT(error_of(w, before.to(at::kCPU, at::kDouble) - 0.1), 1e-6);
}

// Reference: torch::optim's rules in float64.
at::Tensor reference_adam(const at::Tensor& start, int steps) {
  std::vector<at::Tensor> w{start.clone()}, m{at::zeros_like(start)}, v{at::zeros_like(start)};
  for (int step = 1; step <= steps; ++step) {
    const AdamwNumbers n = numbers_of_step(step);
    const std::vector<at::Tensor> g{gradient_of_step(start.numel(), step) * n.gradient_factor};
    at::_fused_adam_(w, g, m, v, {}, {at::full({}, step, at::kFloat)}, n.learning_rate, n.beta1,
                     n.beta2, n.weight_decay, n.epsilon, false, false);
  }
  return w[0];
}

TEST_F(OptimizerKernels, AdamTracksTorchs) {
  for (const int64_t size : {7, 70001}) {
    const at::Tensor start = exact({size}, at::kFloat, 1), w = put(start, at::kFloat);
    const at::Tensor m = at::zeros_like(w), v = at::zeros_like(w);
    for (int step = 1; step <= 5; ++step) {
      AdamwNumbers numbers = numbers_of_step(step);
      numbers.coupled = true;
      const at::Tensor g = put(gradient_of_step(size, step), at::kFloat);
      adamw(on(), WideMaster<float>{data<float>(w), nullptr}, data<float>(g), data<float>(m),
            data<float>(v), size, numbers);
    }
    EXPECT_LT(error_of(w, reference_adam(start, 5)), 1e-6) << size;
  }
}

at::Tensor reference_sgd(const at::Tensor& start, int steps, const SgdNumbers& n) {
  std::vector<at::Tensor> w{start.clone()}, buffer;
  if (n.momentum > 0) buffer.push_back(at::zeros_like(start));
  for (int step = 1; step <= steps; ++step) {
    const std::vector<at::Tensor> g{gradient_of_step(start.numel(), step) * n.gradient_factor};
    at::_fused_sgd_(w, g, buffer, n.weight_decay, n.momentum, n.learning_rate, 0, n.nesterov, false,
                    step == 1);
  }
  return w[0];
}

TEST_F(OptimizerKernels, SgdTracksTorchs) {
  const std::vector<SgdNumbers> kinds{
      {0.01, 0, 0.1, 0.37, false}, {0.01, 0.9, 0.1, 0.37, false}, {0.01, 0.9, 0, 0.37, true}};
  for (const SgdNumbers& numbers : kinds)
    for (const int64_t size : {7, 70001})
      for (const int64_t offset : {0, 1}) {
        const at::Tensor start = exact({size}, at::kFloat, 1);
        const auto found = stable([&] {
          const at::Tensor w = put(start, at::kFloat, offset),
                           copy = place({size}, at::kBFloat16, offset);
          const at::Tensor v = numbers.momentum > 0 ? at::zeros_like(w) : at::Tensor();
          for (int step = 1; step <= 5; ++step) {
            const at::Tensor g = put(gradient_of_step(size, step), at::kFloat, offset);
            sgd(on(), WideMaster<Bf16>{data<float>(w), data<Bf16>(copy)}, data<float>(g),
                data<float>(v), size, numbers);
          }
          return std::vector<at::Tensor>{w, copy};
        });
        EXPECT_LT(error_of(found[0], reference_sgd(start, 5, numbers)), 1e-6) << size;
        EXPECT_TRUE(bits(found[1]).equal(bits(found[0].to(at::kBFloat16)))) << size;
      }
}

// Every upper half with the lower halves around a tie, and random bits.
at::Tensor bit_patterns() {
  constexpr std::array<uint32_t, 8> kLow{0, 1, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff, 0x1234};
  std::vector<int32_t> patterns;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : kLow) patterns.push_back(static_cast<int32_t>(high << 16 | low));
  at::manual_seed(3);
  const at::Tensor random = at::randint(INT32_MIN, int64_t{INT32_MAX} + 1, {100003}, at::kLong);
  return at::cat({at::tensor(patterns, at::kInt), random.to(at::kInt)});
}

TEST_F(OptimizerKernels, MastersInTwoPartsAreExact) {
  const at::Tensor patterns = bit_patterns();
  const int64_t size = patterns.numel();
  for (const int64_t offset : {0, 1}) {
    const at::Tensor masters = place({size}, at::kFloat, offset);
    masters.view(at::kInt).copy_(patterns);
    const auto found = stable([&] {
      const at::Tensor weight = place({size}, at::kBFloat16, offset);
      const at::Tensor remainder = place({size}, at::kShort, offset);
      const at::Tensor joined = place({size}, at::kFloat, offset);
      split_masters(on(), data<float>(masters), data<Bf16>(weight), data<uint16_t>(remainder),
                    size);
      join_masters(on(), data<Bf16>(weight), data<uint16_t>(remainder), data<float>(joined), size);
      return std::vector<at::Tensor>{joined, weight};
    });
    const at::Tensor expected = patterns.view(at::kFloat), joined = found[0].to(at::kCPU);
    const at::Tensor weight = found[1].to(at::kCPU);
    const at::Tensor is_nan = expected.isnan();
    EXPECT_GT(is_nan.sum().item<int64_t>(), 1000);
    EXPECT_TRUE(joined.isnan().equal(is_nan));
    EXPECT_TRUE(weight.isnan().equal(is_nan));
    const at::Tensor numbers = is_nan.logical_not();
    EXPECT_TRUE(bits(joined).masked_select(numbers).equal(patterns.masked_select(numbers)));
    // To nearest; ATen rounds ties differently.
    const at::Tensor tie = patterns.bitwise_and(0xffff).eq(0x8000);
    const at::Tensor compared = numbers.logical_and(tie.logical_not());
    EXPECT_TRUE(bits(weight).masked_select(compared).equal(
        bits(expected.to(at::kBFloat16)).masked_select(compared)));
    const at::Tensor away = patterns.bitwise_and(static_cast<int32_t>(0xffff0000)).add(0x10000);
    const at::Tensor ties = numbers.logical_and(tie);
    EXPECT_TRUE(
        weight.to(at::kFloat).masked_select(ties).equal(away.view(at::kFloat).masked_select(ties)));
  }
}

TEST_F(OptimizerKernels, MastersInTwoPartsTakeTheSameSteps) {
  constexpr int64_t kSize = 40009;
  const at::Tensor start = exact({kSize}, at::kFloat, 1);
  for (const int64_t offset : {0, 1}) {
    const auto found = stable([&] {
      const at::Tensor w = put(start, at::kFloat, offset), m = at::zeros_like(w);
      const at::Tensor v = at::zeros_like(w), m2 = at::zeros_like(w), v2 = at::zeros_like(w);
      const at::Tensor weight = place({kSize}, at::kBFloat16, offset);
      const at::Tensor remainder = place({kSize}, at::kShort, offset);
      const at::Tensor joined = place({kSize}, at::kFloat, offset);
      split_masters(on(), data<float>(w), data<Bf16>(weight), data<uint16_t>(remainder), kSize);
      for (int step = 1; step <= 10; ++step) {
        const at::Tensor g = put(gradient_of_step(kSize, step), at::kFloat, offset);
        adamw(on(), WideMaster<Bf16>{data<float>(w), nullptr}, data<float>(g), data<float>(m),
              data<float>(v), kSize, numbers_of_step(step));
        adamw(on(), SplitMaster{data<Bf16>(weight), data<uint16_t>(remainder)}, data<float>(g),
              data<float>(m2), data<float>(v2), kSize, numbers_of_step(step));
      }
      join_masters(on(), data<Bf16>(weight), data<uint16_t>(remainder), data<float>(joined), kSize);
      return std::vector<at::Tensor>{w, joined, m, m2, v, v2};
    });
    for (size_t i = 0; i < found.size(); i += 2)
      EXPECT_TRUE(bits(found[i]).equal(bits(found[i + 1]))) << "state " << i / 2;
  }
}

template <class Body>
void with_stored(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kFloat) return body(float{});
  return body(Bf16{});
}

// A weight with its moments, each in one dtype.
struct Trained {
  at::Tensor w, m, v;

  Trained(const at::Tensor& start, at::ScalarType weights, at::ScalarType moments, int64_t offset)
      : w(put(start, weights, offset)),
        m(put(at::zeros_like(start), moments, offset)),
        v(put(at::zeros_like(start), moments, offset)) {}
  // The float32 numbers after a store in these types.
  void round_to(at::ScalarType weights, at::ScalarType moments) {
    w.copy_(w.to(weights));
    m.copy_(m.to(moments));
    v.copy_(v.to(moments));
  }
};

// Reference: the step in float32 on the stored numbers, rounded to the stored types.
template <class G, class M>
std::vector<at::Tensor> stored_steps(at::ScalarType gradients, at::ScalarType moments,
                                     int64_t offset) {
  constexpr int64_t kSize = 10009;
  const at::Tensor start = exact({kSize}, at::kBFloat16, 1);
  Trained wide(start, at::kFloat, moments, offset), split(start, at::kBFloat16, moments, offset);
  Trained alone(start, at::kBFloat16, moments, offset);
  Trained want(start, at::kFloat, at::kFloat, 0), want_alone(start, at::kFloat, at::kFloat, 0);
  const at::Tensor remainder = put(at::zeros({kSize}, at::kDouble), at::kShort, offset);
  const at::Tensor copy = place({kSize}, at::kBFloat16, offset),
                   joined = place({kSize}, at::kFloat);
  for (int step = 1; step <= 5; ++step) {
    const AdamwNumbers n = numbers_of_step(step);
    const at::Tensor g = put(gradient_of_step(kSize, step), gradients, offset);
    const at::Tensor g32 = put(g.to(at::kCPU, at::kDouble), at::kFloat);
    adamw(on(), WideMaster<Bf16>{data<float>(wide.w), data<Bf16>(copy)}, data<G>(g),
          data<M>(wide.m), data<M>(wide.v), kSize, n);
    adamw(on(), SplitMaster{data<Bf16>(split.w), data<uint16_t>(remainder)}, data<G>(g),
          data<M>(split.m), data<M>(split.v), kSize, n);
    adamw(on(), data<Bf16>(alone.w), data<G>(g), data<M>(alone.m), data<M>(alone.v), kSize, n);
    for (Trained* each : {&want, &want_alone}) {
      adamw(on(), WideMaster<float>{data<float>(each->w), nullptr}, data<float>(g32),
            data<float>(each->m), data<float>(each->v), kSize, n);
      each->round_to(each == &want ? at::kFloat : at::kBFloat16, moments);
    }
  }
  join_masters(on(), data<Bf16>(split.w), data<uint16_t>(remainder), data<float>(joined), kSize);
  return {wide.w,  want.w,
          copy,    want.w.to(at::kBFloat16),
          joined,  want.w,
          wide.m,  want.m.to(moments),
          split.m, want.m.to(moments),
          split.v, want.v.to(moments),
          alone.w, want_alone.w.to(at::kBFloat16),
          alone.v, want_alone.v.to(moments)};
}

TEST_F(OptimizerKernels, NarrowStorageTakesTheStepsOfFloat32) {
  for (const at::ScalarType gradients : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
      for (const int64_t offset : {0, 1}) {
        with_stored(gradients, [&]<class G>(G) {
          with_stored(moments, [&]<class M>(M) {
            const auto found =
                stable([&] { return stored_steps<G, M>(gradients, moments, offset); });
            for (size_t i = 0; i < found.size(); i += 2)
              EXPECT_TRUE(bits(found[i]).equal(bits(found[i + 1])))
                  << gradients << moments << offset << " state " << i / 2;
          });
        });
      }
    }
  }
}

// The cost of pure bfloat16: a learning rate of 1e-6 changes no weight.
TEST_F(OptimizerKernels, WeightsAloneLoseSmallSteps) {
  const at::Tensor w = put(at::ones({64}, at::kDouble), at::kBFloat16),
                   g = put(at::ones({64}), at::kFloat);
  const at::Tensor m = at::zeros_like(g), v = at::zeros_like(g);
  const auto step = [&](double rate) {
    adamw(on(), data<Bf16>(w), data<float>(g), data<float>(m), data<float>(v), 64,
          {rate, 0.9, 0.95, 1e-8, 0, 1, 1});
    return w.to(at::kCPU, at::kDouble).sub(1).abs().max().item<double>();
  };
  EXPECT_EQ(step(1e-6), 0);
  EXPECT_GT(step(0.01), 0.005);
}

TEST_F(OptimizerKernels, SquareSumsOfBf16) {
  for (const int64_t piece : {8, 12, 4096}) {
    for (const int64_t offset : {0, 1}) {
      const at::Tensor x = exact({21 * piece}, at::kBFloat16, 1, 1e20);
      const auto found = stable([&] {
        const at::Tensor on_device = put(x, at::kBFloat16, offset), sums = place({21}, at::kDouble);
        square_sums(on(), data<Bf16>(on_device), data<double>(sums), 21 * piece, piece);
        return std::vector<at::Tensor>{sums};
      });
      EXPECT_LT(error_of(found[0], x.view({21, piece}).square().sum(1)), 1e-14);
    }
  }
}

TEST_F(OptimizerKernels, SquareSumsOfPieces) {
  for (const int64_t piece : {1, 7, 64, 4096}) {
    for (const int64_t offset : {0, 1}) {
      const at::Tensor x = exact({21 * piece}, at::kFloat, 1, 1e20);  // beyond float32 when squared
      const auto found = stable([&] {
        const at::Tensor on_device = put(x, at::kFloat, offset), sums = place({21}, at::kDouble);
        square_sums(on(), data<float>(on_device), data<double>(sums), 21 * piece, piece);
        return std::vector<at::Tensor>{sums};
      });
      EXPECT_LT(error_of(found[0], x.view({21, piece}).square().sum(1)), 1e-14);
    }
  }
}

}  // namespace
}  // namespace xffl::kernels
