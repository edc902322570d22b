// Reference: torch::optim::AdamW with the same parameter groups.
#include "xffl/shard/adamw.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include "shard/small_layout.h"

namespace xffl::shard {
namespace {

torch::optim::AdamWOptions reference_options(double weight_decay) {
  torch::optim::AdamWOptions options(0.01);
  options.betas({0.9, 0.95}).eps(1e-8).weight_decay(weight_decay);
  return options;
}

TEST(Adamw, TracksTorchsOptimizer) {
  at::manual_seed(2);
  const std::vector<Parameter> layout{
      {{33, 65}, 0, true}, {{65}, 0, false}, {{20, 9}, 1, true}, {{9}, 1, false}};
  FlatParameters flat(layout, {});
  std::vector<at::Tensor> decayed, plain, all;
  for (size_t i = 0; i < layout.size(); ++i) {
    master(flat, i).normal_(0, 1);
    all.push_back(master(flat, i).clone().requires_grad_(true));
    (layout[i].decay ? decayed : plain).push_back(all.back());
  }
  torch::optim::AdamW reference(
      std::vector<torch::optim::OptimizerParamGroup>{
          {decayed, std::make_unique<torch::optim::AdamWOptions>(reference_options(0.1))},
          {plain, std::make_unique<torch::optim::AdamWOptions>(reference_options(0))}},
      reference_options(0));
  Adamw optimizer(flat, {0.9, 0.95, 1e-8, 0.1});
  for (int step = 0; step < 30; ++step) {
    const double rate = 0.01 * (step + 1) / 30;
    for (size_t i = 0; i < layout.size(); ++i) {
      flat.gradient(i).normal_(0, 0.1);
      all[i].mutable_grad() = flat.gradient(i).clone();
    }
    for (auto& group : reference.param_groups())
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(rate);
    reference.step();
    optimizer.step(rate);
  }
  for (size_t i = 0; i < layout.size(); ++i) {
    const at::Tensor want = all[i].detach();
    EXPECT_LT((master(flat, i) - want).norm().item<double>() / want.norm().item<double>(), 2e-6)
        << i;
  }
}

// Clipping and unscaling need no pass of their own.
TEST(Adamw, GradientFactorScalesTheGradients) {
  const std::vector<Parameter> layout{{{70, 65}, 0, true}, {{65}, 0, false}};
  FlatParameters scaled(layout, {}), plain(layout, {});
  Adamw scaling(scaled, {0.9, 0.95, 1e-8, 0.1}), reference(plain, {0.9, 0.95, 1e-8, 0.1});
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < layout.size(); ++i) {
      at::manual_seed(static_cast<uint64_t>(7 + step));
      scaled.gradient(i).normal_(0, 0.1);
      plain.gradient(i).copy_(scaled.gradient(i) * 0.25);
    }
    scaling.step(0.01, 0.25);
    reference.step(0.01);
  }
  for (size_t i = 0; i < layout.size(); ++i) {
    EXPECT_TRUE(master(scaled, i).equal(master(plain, i)));
    EXPECT_GT(master(scaled, i).abs().max().item<double>(), 1e-3);
  }
}

TEST(Adamw, RefreshesTheBf16Copy) {
  FlatParameters flat({{{8, 8}, 0, true}}, {at::kCPU, at::kBFloat16, true});
  master(flat, 0).fill_(1);
  flat.gradient(0).fill_(1);
  Adamw(flat, {}).step(0.1);
  EXPECT_NEAR(master(flat, 0).mean().item<double>(), 0.9, 1e-5);
  EXPECT_TRUE(flat.compute(0).equal(master(flat, 0).to(at::kBFloat16)));
  flat.gradient(0).normal_();
  Adamw(flat, {}).step(0.1);
  EXPECT_TRUE(flat.compute(0).equal(master(flat, 0).to(at::kBFloat16))) << "every way of rounding";
}

}  // namespace
}  // namespace xffl::shard
