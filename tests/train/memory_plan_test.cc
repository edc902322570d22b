// Reference: Llama-2 7B's 6.74 billion parameters, counted by hand: 2 bytes of bf16, 4 of master, 4
// of gradient, 8 of moments.
#include "memory_plan.h"

#include <gtest/gtest.h>

#include "xffl/train/loaded_model.h"

namespace xffl::train {
namespace {

checkpoint::LlamaConfig llama_7b() {
  checkpoint::LlamaConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.intermediate_size = 11008;
  config.num_layers = 32;
  config.num_heads = config.num_kv_heads = 32;
  config.head_dim = 128;
  return config;
}

MemoryPlan plan_with(job::Sharding sharding, int num_shards,
                     job::Offload offload = job::Offload::kNone,
                     job::Recompute recompute = job::Recompute::kNone) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  training.micro_batch_size = 1;
  training.sharding = sharding;
  training.offload = offload;
  training.recompute = recompute;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_7b())),
                                 num_shards);
  return plan_memory(llama_7b(), layout, training, 2048);
}

constexpr double kParameters = 6.738e9;

TEST(MemoryPlan, DataParallelismHoldsAll) {
  const MemoryPlan plan = plan_with(job::Sharding::kNone, 8);
  EXPECT_NEAR(static_cast<double>(plan.parameters), 2 * kParameters, 2e7);
  EXPECT_NEAR(static_cast<double>(plan.masters), 4 * kParameters, 4e7);
  EXPECT_NEAR(static_cast<double>(plan.gradients), 4 * kParameters, 4e7);
  EXPECT_NEAR(static_cast<double>(plan.moments), 8 * kParameters, 8e7);
  EXPECT_EQ(plan.buffers, 0);
  EXPECT_EQ(plan.host, 0);
}

TEST(MemoryPlan, AnOuterOptimizerKeepsTheLastExchangeAndItsMoments) {
  job::TrainingSpec training;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_7b())), 2);
  const auto moments = [&] {
    return plan_memory(llama_7b(), layout, training, 2048).moments / layout.total_size();
  };
  training.groups.count = 2;
  EXPECT_EQ(moments(), 8);
  training.groups.outer.kind = job::OuterOptimizer::kNesterov;
  EXPECT_EQ(moments(), 16);
  training.groups.outer.kind = job::OuterOptimizer::kAdam;
  EXPECT_EQ(moments(), 20);
}

TEST(MemoryPlan, EachModeHoldsLess) {
  using enum job::Sharding;
  const int64_t none = plan_with(kNone, 8).total(), optimizer = plan_with(kOptimizer, 8).total();
  const int64_t gradients = plan_with(kGradients, 8).total(), full = plan_with(kFull, 8).total();
  EXPECT_GT(none, optimizer);
  EXPECT_GT(optimizer, gradients);
  EXPECT_GT(gradients, full);
  EXPECT_NEAR(static_cast<double>(plan_with(kFull, 8).moments), kParameters, 1e7);
}

TEST(MemoryPlan, OffloadMovesToTheHostAndRecomputeKeepsInputsOnly) {
  const MemoryPlan offloaded = plan_with(job::Sharding::kFull, 4, job::Offload::kParameters);
  EXPECT_NEAR(static_cast<double>(offloaded.host), (2 + 4 + 8) * kParameters / 4, 1e8);
  const MemoryPlan kept = plan_with(job::Sharding::kFull, 4);
  const MemoryPlan again =
      plan_with(job::Sharding::kFull, 4, job::Offload::kNone, job::Recompute::kFull);
  EXPECT_LT(again.activations * 6, kept.activations);
  const MemoryPlan cheap =
      plan_with(job::Sharding::kFull, 4, job::Offload::kNone, job::Recompute::kCheap);
  // Of 32 blocks but one, two norms of 4096 and an activation of 11008, in 2 bytes for 2048 tokens.
  EXPECT_EQ(kept.activations - cheap.activations, int64_t{2048} * 2 * 31 * (2 * 4096 + 11008));
}

TEST(MemoryPlan, AnAdapterLeavesTheModelItsValuesOnly) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  training.micro_batch_size = 1;
  const checkpoint::LoraConfig lora{16, 32, 0, {"q_proj", "v_proj"}};
  const shard::FlatLayout adapter(flat_parameters_of(llama::adapter_specs(llama_7b(), lora)), 1);
  const shard::FlatLayout model(flat_parameters_of(llama::parameter_specs(llama_7b())), 1);
  MemoryPlan plan = plan_memory(llama_7b(), adapter, training, 2048);
  add_frozen(plan, model, training);
  // 32 layers, 2 modules, 16 * (4096 + 4096) elements: 8.4 million.
  EXPECT_NEAR(static_cast<double>(plan.moments), 8.39e6 * 8, 1e6);
  EXPECT_NEAR(static_cast<double>(plan.parameters), (kParameters + 8.39e6) * 2, 1e7);
  EXPECT_LT(static_cast<double>(plan.masters + plan.moments + plan.gradients), 0.2e9);
}

}  // namespace
}  // namespace xffl::train
