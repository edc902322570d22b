// Reference: the same flat buffers on the CPU, which tests/shard compares with torch's optimizer.
#include "gpu_test.h"
#include "shard/small_layout.h"
#include "xffl/shard/optimizer.h"

namespace xffl::shard {
namespace {

class ShardOnGpu : public GpuTest {};

constexpr double kFactor = 0.37;  // rounded products expose fused operations

struct Storage {
  Masters masters = Masters::kFloat32;
  at::ScalarType gradients = at::kFloat, moments = at::kFloat;
};

FlatOptions options_on(at::Device device, at::ScalarType dtype, const Storage& storage = {}) {
  FlatOptions options;
  options.device = device;
  options.compute_dtype = dtype;
  options.masters = storage.masters;
  options.gradient_dtype = storage.gradients;
  return options;
}

// Takes ten clipped steps, checks the compute copies, and returns the masters.
std::vector<at::Tensor> train(at::Device device, at::ScalarType dtype,
                              const Storage& storage = {}) {
  const std::vector<Parameter> layout = small_layout();
  FlatParameters flat(layout, options_on(device, dtype, storage));
  at::manual_seed(2);
  for (size_t i = 0; i < layout.size(); ++i)
    flat.set_master_part(i, {0, layout[i].num_elements()}, at::randn(layout[i].num_elements()));
  flat.refresh_compute();
  Optimizer optimizer(flat, {0.9, 0.95, 1e-8, 0.1, storage.moments});
  for (int step = 0; step < 10; ++step) {
    for (size_t i = 0; i < layout.size(); ++i)
      flat.gradient(i).copy_(at::randn(layout[i].shape) * 0.3);
    optimizer.step(0.01, kFactor);
  }
  std::vector<at::Tensor> masters;
  for (size_t i = 0; i < layout.size(); ++i) {
    masters.push_back(master(flat, i).cpu());
    if (storage.masters != Masters::kSplit) {  // kSplit rounds ties away from zero
      EXPECT_TRUE(flat.compute(i).cpu().equal(masters.back().to(dtype))) << i;
    }
  }
  return masters;
}

TEST_F(ShardOnGpu, AdamwEqualsTheCpu) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::vector<at::Tensor> want = train(at::kCPU, dtype), found = train(kGpu, dtype);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(gpu_error(found[i], want[i]), 2e-6) << i;
  }
}

TEST_F(ShardOnGpu, SplitMastersEqualFloat32MastersInEveryStorage) {
  for (const at::ScalarType gradients : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
      const auto wide = train(kGpu, at::kBFloat16, {Masters::kFloat32, gradients, moments});
      const auto split = train(kGpu, at::kBFloat16, {Masters::kSplit, gradients, moments});
      for (size_t i = 0; i < wide.size(); ++i) EXPECT_TRUE(split[i].equal(wide[i])) << i;
    }
  }
}

TEST_F(ShardOnGpu, WeightsWithoutMastersFollowTheCpu) {
  const Storage pure{Masters::kNone, at::kBFloat16, at::kBFloat16};
  const std::vector<at::Tensor> want = train(at::kCPU, at::kBFloat16, pure);
  const std::vector<at::Tensor> found = train(kGpu, at::kBFloat16, pure);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(gpu_error(found[i], want[i]), 2e-3) << i;
}

TEST_F(ShardOnGpu, NormAndScaleEqualTheCpu) {
  for (const at::ScalarType gradients : {at::kFloat, at::kBFloat16}) {
    double sums[2] = {};
    for (const bool on_gpu : {false, true}) {
      const std::vector<Parameter> layout = small_layout();
      FlatParameters flat(layout, options_on(on_gpu ? kGpu : at::Device(at::kCPU), gradients,
                                             {Masters::kFloat32, gradients}));
      at::manual_seed(4);
      for (size_t i = 0; i < layout.size(); ++i) flat.gradient(i).copy_(at::randn(layout[i].shape));
      for (const UnitState& state : flat.states()) state.gradient_S.mul_(0.25);
      sums[on_gpu ? 1 : 0] = flat.gradient_square_sum().item<double>();
      EXPECT_EQ(sums[on_gpu ? 1 : 0], flat.gradient_square_sum().item<double>());
    }
    EXPECT_NEAR(sums[1] / sums[0], 1, 1e-6);
  }
}

TEST_F(ShardOnGpu, OffloadedStatesStepOnTheHost) {
  FlatOptions options = options_on(kGpu, at::kBFloat16);
  options.offload.states = true;
  FlatParameters flat({{{8, 8}, 0, true}}, options);
  flat.states()[0].master_S.fill_(1);
  flat.states()[0].gradient_S.fill_(1);
  EXPECT_TRUE(flat.states()[0].master_S.is_pinned());
  Optimizer(flat, {}).step(0.1);
  EXPECT_NEAR(flat.compute(0).to(at::kFloat).mean().item<double>(), 0.9, 4e-3);
}

// Takes three steps with the units in the order of a model's backward.
std::vector<at::Tensor> train_offloaded(at::Device device, bool parameters_too) {
  const std::vector<Parameter> layout = small_layout();
  FlatOptions options = options_on(device, at::kBFloat16);
  options.offload = {true, parameters_too};
  FlatParameters flat(layout, options);
  at::manual_seed(6);
  for (size_t i = 0; i < layout.size(); ++i)
    flat.set_master_part(i, {0, layout[i].num_elements()}, at::randn(layout[i].num_elements()));
  flat.refresh_compute();
  Optimizer optimizer(flat, {0.9, 0.95, 1e-8, 0.1});
  std::vector<at::Tensor> found;
  for (int step = 0; step < 3; ++step) {
    flat.begin_step();
    for (int unit = flat.num_units() - 1; unit >= 0; --unit) {
      flat.gather(unit);
      if (unit > 0) flat.prefetch(unit - 1);
      flat.open_gradients(unit);
      for (size_t i = 0; i < layout.size(); ++i) {
        if (layout[i].unit != unit) continue;
        // cpu() of a tensor on the CPU would be this buffer, which later steps change.
        found.push_back(flat.compute(i).clone().cpu());
        flat.gradient(i).copy_(at::randn(layout[i].shape));
      }
      flat.close_gradients(unit);
      flat.release(unit);
    }
    flat.finish_gradients();
    optimizer.step(0.01, kFactor);
  }
  for (size_t i = 0; i < layout.size(); ++i) found.push_back(master(flat, i).cpu());
  return found;
}

// The host computes the same bits, unless a copy is late.
TEST_F(ShardOnGpu, OffloadedStepsEqualTheCpuBitForBit) {
  for (const bool parameters_too : {false, true}) {
    const auto want = train_offloaded(at::kCPU, parameters_too);
    const auto found = train_offloaded(kGpu, parameters_too);
    ASSERT_EQ(found.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(found[i].equal(want[i])) << i;
  }
}

// Keeps a GPU busy for tens of milliseconds, so that unsynchronized work runs too early.
class Busy {
 public:
  explicit Busy(at::Device device) : on_gpu_(device.is_cuda()) {
    if (on_gpu_) factor_ = at::ones({8192, 8192}, at::dtype(at::kBFloat16).device(device));
  }
  void work() const {
    for (int i = 0; on_gpu_ && i < 12; ++i) at::mm(factor_, factor_);
  }

 private:
  bool on_gpu_;
  at::Tensor factor_;
};

// Units of 64 MB behind queued products; gradients depend on the units' values. The test copies
// nothing to the host before the end, so that its own copies do not synchronize streams.
std::vector<at::Tensor> train_large_units(at::Device device, bool parameters_too) {
  constexpr int kUnits = 3;
  constexpr int64_t kSide = 4096;
  std::vector<Parameter> layout;
  for (int unit = 0; unit < kUnits; ++unit) layout.push_back({{kSide, kSide}, unit, true});
  FlatOptions options = options_on(device, at::kBFloat16);
  options.offload = {true, parameters_too};
  FlatParameters flat(layout, options);
  at::manual_seed(9);
  const at::Tensor start = at::randn({kSide * kSide});
  for (size_t i = 0; i < layout.size(); ++i)
    flat.set_master_part(i, {0, start.numel()}, start + static_cast<double>(i));
  flat.refresh_compute();
  Optimizer optimizer(flat, {0.9, 0.95, 1e-8, 0.1});
  const Busy busy(device);
  std::vector<at::Tensor> found;
  for (int step = 0; step < 2; ++step) {
    flat.begin_step();
    for (int unit = kUnits - 1; unit >= 0; --unit) {
      flat.gather(unit);
      if (unit > 0) flat.prefetch(unit - 1);
      flat.open_gradients(unit);
      busy.work();
      const at::Tensor values = flat.compute(static_cast<size_t>(unit)).clone();
      flat.gradient(static_cast<size_t>(unit)).copy_(values.to(at::kFloat) * 0.25);
      flat.close_gradients(unit);
      flat.release(unit);
      busy.work();
      found.push_back(values);
    }
    flat.finish_gradients();
    optimizer.step(0.01, kFactor);
  }
  for (at::Tensor& values : found) values = values.cpu();
  for (size_t i = 0; i < layout.size(); ++i) found.push_back(master(flat, i).cpu());
  return found;
}

TEST_F(ShardOnGpu, CopiesBesideABusyGpuAreOrdered) {
  for (const bool parameters_too : {false, true}) {
    const auto want = train_large_units(at::kCPU, parameters_too);
    const auto found = train_large_units(kGpu, parameters_too);
    ASSERT_EQ(found.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(found[i].equal(want[i])) << i;
  }
}

}  // namespace
}  // namespace xffl::shard
