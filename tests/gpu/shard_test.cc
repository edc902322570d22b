// Reference: the same flat buffers on the CPU, which tests/shard compares with torch's optimizer.
#include "gpu_test.h"
#include "shard/small_layout.h"
#include "xffl/shard/adamw.h"

namespace xffl::shard {
namespace {

class ShardOnGpu : public GpuTest {};

FlatOptions options_on(at::Device device, at::ScalarType dtype) {
  FlatOptions options;
  options.device = device;
  options.compute_dtype = dtype;
  return options;
}

// Ten clipped steps; returns the masters, and checks the copies.
std::vector<at::Tensor> train(at::Device device, at::ScalarType dtype) {
  const std::vector<Parameter> layout = small_layout();
  FlatParameters flat(layout, options_on(device, dtype));
  at::manual_seed(2);
  for (size_t i = 0; i < layout.size(); ++i)
    flat.master_part(i).copy_(at::randn(layout[i].num_elements()));
  flat.refresh_compute();
  Adamw optimizer(flat, {0.9, 0.95, 1e-8, 0.1});
  for (int step = 0; step < 10; ++step) {
    for (size_t i = 0; i < layout.size(); ++i)
      flat.gradient(i).copy_(at::randn(layout[i].shape) * 0.3);
    optimizer.step(0.01, 0.5);
  }
  std::vector<at::Tensor> masters;
  for (size_t i = 0; i < layout.size(); ++i) {
    masters.push_back(master(flat, i).cpu());
    EXPECT_TRUE(flat.compute(i).cpu().equal(masters.back().to(dtype))) << i;
  }
  return masters;
}

TEST_F(ShardOnGpu, AdamwEqualsTheCpus) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::vector<at::Tensor> want = train(at::kCPU, dtype), found = train(kGpu, dtype);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(gpu_error(found[i], want[i]), 2e-6) << i;
  }
}

TEST_F(ShardOnGpu, NormAndScaleEqualTheCpus) {
  double sums[2] = {};
  for (const bool on_gpu : {false, true}) {
    const std::vector<Parameter> layout = small_layout();
    FlatParameters flat(layout, options_on(on_gpu ? kGpu : at::Device(at::kCPU), at::kFloat));
    at::manual_seed(4);
    for (size_t i = 0; i < layout.size(); ++i) flat.gradient(i).copy_(at::randn(layout[i].shape));
    flat.scale_gradients(0.25);
    sums[on_gpu ? 1 : 0] = flat.gradient_square_sum();
    EXPECT_EQ(sums[on_gpu ? 1 : 0], flat.gradient_square_sum());
  }
  EXPECT_NEAR(sums[1] / sums[0], 1, 1e-6);
}

TEST_F(ShardOnGpu, OffloadedStatesStepOnTheHost) {
  FlatOptions options = options_on(kGpu, at::kBFloat16);
  options.offload.states = true;
  FlatParameters flat({{{8, 8}, 0, true}}, options);
  flat.states()[0].master_S.fill_(1);
  flat.states()[0].gradient_S.fill_(1);
  EXPECT_TRUE(flat.states()[0].master_S.is_pinned());
  Adamw(flat, {}).step(0.1);
  EXPECT_NEAR(flat.compute(0).to(at::kFloat).mean().item<double>(), 0.9, 4e-3);
}

}  // namespace
}  // namespace xffl::shard
