// Reference: Llama-2 7B's 6.74 billion parameters, counted by hand: 2 bytes of bf16, 4 of master, 4
// of gradient, 8 of moments.
#include "memory_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "xffl/base/file.h"
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
                     job::Recompute recompute = job::Recompute::kNone,
                     at::Device device = at::kCPU) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  training.micro_batch_size = 1;
  training.sharding = sharding;
  training.offload = offload;
  training.recompute = recompute;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_7b())),
                                 num_shards);
  return plan_memory(llama_7b(), layout, training, 2048, {}, device);
}

constexpr double kParameters = 6.738e9;

TEST(MemoryPlan, DataParallelismHoldsTheWholeModel) {
  const MemoryPlan plan = plan_with(job::Sharding::kNone, 8);
  EXPECT_NEAR(static_cast<double>(plan.parameters), 2 * kParameters, 2e7);
  EXPECT_NEAR(static_cast<double>(plan.masters), 4 * kParameters, 4e7);
  EXPECT_NEAR(static_cast<double>(plan.gradients), 4 * kParameters, 4e7);
  EXPECT_NEAR(static_cast<double>(plan.moments), 8 * kParameters, 8e7);
  EXPECT_EQ(plan.host, 0);
}

// Other programs change the free memory between the two calls.
TEST(MemoryPlan, RanksOfAMachineShareItsMemory) {
  EXPECT_LT(free_memory(at::kCPU, 8).host, free_memory(at::kCPU, 1).host / 2);
}

// Units of 7B: an embedding of 0.131 billion, 32 blocks of 0.2024 each, a head of 0.131.
TEST(MemoryPlan, GlooBuffersTwoUnitsPerSize) {
  const double units = 131.1e6 + 2 * 202.4e6 + 131.1e6;
  EXPECT_NEAR(static_cast<double>(plan_with(job::Sharding::kNone, 8).buffers), 4 * units, 2e7);
  EXPECT_EQ(plan_with(job::Sharding::kNone, 1).buffers, 0) << "no other rank to receive from";
  const auto buffers = [](job::Sharding sharding, at::Device device) {
    return static_cast<double>(
        plan_with(sharding, 8, job::Offload::kNone, job::Recompute::kNone, device).buffers);
  };
  EXPECT_EQ(buffers(job::Sharding::kNone, at::kCUDA), 0) << "NCCL receives in place";
  EXPECT_NEAR(buffers(job::Sharding::kGradients, at::kCUDA), 4 * units, 2e7);
  EXPECT_NEAR(buffers(job::Sharding::kFull, at::kCUDA), (4 + 2) * units, 3e7);
  EXPECT_NEAR(buffers(job::Sharding::kFull, at::kCPU), (4 + 4 + 2) * units, 5e7);
}

TEST(MemoryPlan, ExactTermsRejectAndEstimatesWarn) {
  using enum MemoryVerdict;
  MemoryPlan plan;
  plan.moments = 100;
  plan.parameters = 50;
  EXPECT_EQ(judge(plan, {150, std::nullopt}), kFits);
  EXPECT_EQ(judge(plan, {149, std::nullopt}), kCannotFit);
  EXPECT_EQ(judge(plan, {0, std::nullopt}), kMayNotFit) << "host memory is unknown";
  plan.activations = 20;
  EXPECT_EQ(judge(plan, {170, std::nullopt}), kFits);
  EXPECT_EQ(judge(plan, {169, std::nullopt}), kMayNotFit);
  EXPECT_EQ(judge(plan, {0, 170}), kFits);
  EXPECT_EQ(judge(plan, {0, 169}), kMayNotFit);
  EXPECT_EQ(judge(plan, {0, 149}), kCannotFit);
}

TEST(MemoryPlan, GpuAndHostMemoryAreCheckedSeparately) {
  using enum MemoryVerdict;
  MemoryPlan plan;
  plan.moments = 100;
  plan.parameters = 50;
  plan.host = 100;
  EXPECT_EQ(judge(plan, {149, std::nullopt}), kCannotFit) << "a CPU has one memory";
  EXPECT_EQ(judge(plan, {100, 50}), kFits);
  EXPECT_EQ(judge(plan, {100, 49}), kCannotFit);
  EXPECT_EQ(judge(plan, {99, 50}), kCannotFit);
  plan.pinning = 20;
  EXPECT_EQ(judge(plan, {119, 50}), kMayNotFit);
  EXPECT_EQ(judge(plan, {120, 50}), kFits);
}

// The context exists before free memory is read and is not counted twice.
TEST(MemoryPlan, AGpuAlsoHoldsLibraries) {
  using enum MemoryVerdict;
  MemoryPlan plan =
      plan_with(job::Sharding::kNone, 1, job::Offload::kNone, job::Recompute::kNone, at::kCUDA);
  EXPECT_EQ(plan.workspaces, (int64_t{128} << 20) + int64_t{2048} * 4096 * 4);
  EXPECT_GT(plan.context, int64_t{500} << 20);
  EXPECT_EQ(plan.total(), plan.exact() + plan.buffers + plan.activations + plan.logits +
                              plan.workspaces + plan.communicators + plan.context);
  const int64_t needed = plan.total() - plan.context;
  EXPECT_EQ(judge(plan, {0, needed}), kFits);
  EXPECT_EQ(judge(plan, {0, needed - 1}), kMayNotFit);
  EXPECT_EQ(judge(plan, {0, plan.exact()}), kMayNotFit);
  EXPECT_EQ(judge(plan, {0, plan.exact() - 1}), kCannotFit);
  add_communicators(plan, 3, at::kCUDA);
  EXPECT_EQ(judge(plan, {0, needed}), kMayNotFit);
  EXPECT_EQ(judge(plan, {0, needed + plan.communicators}), kFits);
  MemoryPlan on_cpu = plan_with(job::Sharding::kNone, 1);
  add_communicators(on_cpu, 3, at::kCPU);
  EXPECT_EQ(on_cpu.workspaces + on_cpu.communicators + on_cpu.context, 0);
}

// torch's pinned allocator rounds up to powers of two. One unit of 3 x 4096 elements: masters and
// gradients 48 -> 64 KB each, compute values 24 -> 32 KB.
TEST(MemoryPlan, PinnedBuffersAreRoundedUp) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  const shard::FlatLayout layout({{{3, 4096}, 0, true}}, 1);
  const auto pinning = [&](job::Offload offload, at::Device device) {
    training.offload = offload;
    return plan_memory(llama_7b(), layout, training, 100, {}, device).pinning;
  };
  EXPECT_EQ(pinning(job::Offload::kOptimizer, at::kCUDA), (16 + 16) << 10);
  EXPECT_EQ(pinning(job::Offload::kParameters, at::kCUDA), (16 + 16 + 8) << 10);
  EXPECT_EQ(pinning(job::Offload::kNone, at::kCUDA), 0);
  EXPECT_EQ(pinning(job::Offload::kParameters, at::kCPU), 0);
}

TEST(MemoryPlan, AnOuterOptimizerAddsAnchorAndMoments) {
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

TEST(MemoryPlan, TheProximalTermAddsACopyOfTheInputModel) {
  job::TrainingSpec training;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_7b())), 1);
  const auto masters = [&] { return plan_memory(llama_7b(), layout, training, 2048).masters; };
  const int64_t without = masters();
  training.proximal = 0.1;
  EXPECT_EQ(masters() - without, 4 * layout.total_size());
}

TEST(MemoryPlan, EachShardingModeNeedsLess) {
  using enum job::Sharding;
  const int64_t none = plan_with(kNone, 8).total(), optimizer = plan_with(kOptimizer, 8).total();
  const int64_t gradients = plan_with(kGradients, 8).total(), full = plan_with(kFull, 8).total();
  EXPECT_GT(none, optimizer);
  EXPECT_GT(optimizer, gradients);
  EXPECT_GT(gradients, full);
  EXPECT_NEAR(static_cast<double>(plan_with(kFull, 8).moments), kParameters, 1e7);
}

TEST(MemoryPlan, OffloadUsesHostMemoryAndRecomputeKeepsInputsOnly) {
  const MemoryPlan offloaded = plan_with(job::Sharding::kFull, 4, job::Offload::kParameters);
  // Values, masters, moments and reduced gradients.
  EXPECT_NEAR(static_cast<double>(offloaded.host), (2 + 4 + 8 + 4) * kParameters / 4, 1e8);
  const MemoryPlan kept = plan_with(job::Sharding::kFull, 4);
  const MemoryPlan again =
      plan_with(job::Sharding::kFull, 4, job::Offload::kNone, job::Recompute::kFull);
  EXPECT_LT(again.activations * 6, kept.activations);
  const MemoryPlan cheap =
      plan_with(job::Sharding::kFull, 4, job::Offload::kNone, job::Recompute::kCheap);
  // 31 blocks drop two norms of 4096 and an activation of 11008, 2 bytes each, for 2048 tokens.
  EXPECT_EQ(kept.activations - cheap.activations, int64_t{2048} * 2 * 31 * (2 * 4096 + 11008));
}

TEST(MemoryPlan, WithAnAdapterTheModelHasValuesOnly) {
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

TEST(MemoryPlan, AStageKeepsTheActivationsOfItsMicroBatchesInFlight) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  training.micro_batch_size = 1;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_7b())), 1);
  const auto activations = [&](UnitRange units, int64_t in_flight) {
    return plan_memory(llama_7b(), layout, training, 2048, {units, in_flight}).activations;
  };
  // For each token a block of 7B keeps 4 * 4096 + 3 * 4096 + 4 * 4096 + 3 * 11008 elements.
  const int64_t block = int64_t{2048} * 2 * (11 * 4096 + 3 * 11008);
  EXPECT_EQ(activations({9, 17}, 2) - activations({9, 17}, 1), 8 * block);
  EXPECT_EQ(activations({0, 9}, 4) - activations({0, 9}, 1), 3 * 8 * block) << "and an embedding";
  EXPECT_EQ(activations({25, 34}, 1), activations({9, 17}, 1)) << "8 blocks and a head";
}

// The largest unit of 7B is a block of 202.4 million elements.
TEST(MemoryPlan, AnExchangeOfNarrowWeightsHasFloat32MastersOfOneUnit) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_7b())), 1);
  const auto buffers = [&] { return plan_memory(llama_7b(), layout, training, 2048).buffers; };
  training.masters = job::Masters::kSplit;
  EXPECT_EQ(buffers(), 0) << "one group";
  training.groups.count = 2;
  EXPECT_NEAR(static_cast<double>(buffers()), 4 * 202.4e6, 1e6);
  training.groups.exchange = job::Exchange::kGradients;
  EXPECT_EQ(buffers(), 0);
  training.groups.exchange = job::Exchange::kWeights;
  training.masters = job::Masters::kFloat32;
  EXPECT_EQ(buffers(), 0);
}

TEST(MemoryPlan, RanksShardAFrozenModelToo) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  training.sharding = job::Sharding::kFull;
  const shard::FlatLayout model(flat_parameters_of(llama::parameter_specs(llama_7b())), 8);
  MemoryPlan plan;
  add_frozen(plan, model, training);
  EXPECT_NEAR(static_cast<double>(plan.parameters), 2 * kParameters / 8, 1e7);
  const double gathered = 131.1e6 + 2 * 202.4e6 + 131.1e6;  // two units of each size
  EXPECT_NEAR(static_cast<double>(plan.buffers), 2 * gathered, 2e7);
}

TEST(MemoryPlan, AStageMayHaveNoTrainedParameters) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  training.sharding = job::Sharding::kOptimizer;
  training.offload = job::Offload::kOptimizer;
  const checkpoint::LoraConfig lora{16, 32, 0, {"q_proj", "v_proj"}};
  const UnitRange head{33, 34};
  const shard::FlatLayout adapter(flat_parameters_of(llama::adapter_specs(llama_7b(), lora), head),
                                  2);
  const MemoryPlan plan =
      plan_memory(llama_7b(), adapter, training, 2048, {head, 1, false}, at::kCUDA);
  EXPECT_EQ(plan.exact() + plan.pinning, 0);
  EXPECT_GT(plan.logits, 0);
}

TEST(MemoryPlan, BothEndsOfAPipelineHoldATrainedTiedHead) {
  checkpoint::LlamaConfig config = llama_7b();
  config.tie_word_embeddings = true;
  const auto head_bytes = [&](UnitRange units, bool trained) {
    job::TrainingSpec training;
    training.precision = job::FloatType::kBfloat16;
    const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(config), units), 1);
    const MemoryPlan plan = plan_memory(config, layout, training, 2048, {units, 1, trained});
    const int64_t own = layout.total_size();
    return std::pair(plan.parameters - 2 * own, plan.gradients - 4 * own);
  };
  const int64_t elements = int64_t{32000} * 4096;
  EXPECT_EQ(head_bytes({0, 17}, true), std::pair(int64_t{0}, 4 * elements)) << "to receive";
  EXPECT_EQ(head_bytes({17, 34}, true), std::pair(2 * elements, 4 * elements));
  EXPECT_EQ(head_bytes({0, 17}, false), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(head_bytes({17, 34}, false), std::pair(2 * elements, int64_t{0}));
  EXPECT_EQ(head_bytes({1, 17}, true), std::pair(int64_t{0}, int64_t{0})) << "between the ends";
  EXPECT_EQ(head_bytes({0, 34}, true), std::pair(int64_t{0}, int64_t{0})) << "one stage";
}

TEST(MemoryPlan, WithDoraEachAdaptedLayerKeepsOneMoreResult) {
  using enum job::Recompute;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_7b())), 1);
  const auto activations = [&](bool weight_decomposed, job::Recompute recompute) {
    job::TrainingSpec training;
    training.precision = job::FloatType::kBfloat16;
    training.micro_batch_size = 1;
    training.recompute = recompute;
    training.lora = {16, 32, 0, {"q_proj", "up_proj"}, false, weight_decomposed};
    return plan_memory(llama_7b(), layout, training, 2048).activations;
  };
  // 4096 queries and 11008 elements of the feed-forward layer, 2 bytes each, for 2048 tokens.
  const int64_t block = int64_t{2048} * 2 * (4096 + 11008);
  EXPECT_EQ(activations(true, kNone) - activations(false, kNone), 32 * block);
  EXPECT_EQ(activations(true, kFull) - activations(false, kFull), block);
}

checkpoint::LlamaConfig llama_8b() {
  checkpoint::LlamaConfig config = llama_7b();
  config.vocab_size = 128256;
  config.intermediate_size = 14336;
  config.num_kv_heads = 8;
  return config;
}

MemoryPlan plan_stored(job::Masters masters, job::StateDtype moments, job::StateDtype gradients,
                       job::Offload offload = job::Offload::kNone) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  training.micro_batch_size = 1;
  training.masters = masters;
  training.moment_dtype = moments;
  training.gradient_dtype = gradients;
  training.offload = offload;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_7b())), 1);
  return plan_memory(llama_7b(), layout, training, 2048);
}

TEST(MemoryPlan, CountsNarrowStorage) {
  using enum job::StateDtype;
  const auto bytes = [](const MemoryPlan& plan) {
    return std::array{plan.parameters, plan.masters, plan.moments, plan.gradients};
  };
  const auto expect = [&](const MemoryPlan& plan, const std::array<int, 4>& a_parameter) {
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(static_cast<double>(bytes(plan)[i]), a_parameter[i] * kParameters, 8e7) << i;
  };
  expect(plan_stored(job::Masters::kSplit, kFloat32, kFloat32), {2, 2, 8, 4});
  expect(plan_stored(job::Masters::kSplit, kBfloat16, kBfloat16), {2, 2, 4, 2});
  expect(plan_stored(job::Masters::kNone, kBfloat16, kBfloat16), {2, 0, 4, 2});
  expect(plan_stored(job::Masters::kFloat32, kFloat32, kBfloat16), {2, 4, 8, 2});
  // On the host: weights, remainders, moments, and reduced gradients, in addition to the gradients
  // that backward writes.
  const MemoryPlan offloaded =
      plan_stored(job::Masters::kSplit, kFloat32, kFloat32, job::Offload::kOptimizer);
  expect(offloaded, {2, 4, 8, 8});
  EXPECT_NEAR(static_cast<double>(offloaded.host), (4 + 8 + 4) * kParameters, 1e8);
}

TEST(MemoryPlan, CountsTheLogitsOfOneChunk) {
  job::TrainingSpec training;
  training.precision = job::FloatType::kBfloat16;
  training.micro_batch_size = 2;
  const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_8b())), 1);
  const auto logits = [&](at::Device device) {
    return plan_memory(llama_8b(), layout, training, 2048, {}, device).logits;
  };
  EXPECT_EQ(logits(at::kCUDA), int64_t{2048} * 128256 * 2) << "16 tiles of 128 rows";
  EXPECT_EQ(logits(at::kCPU), int64_t{261} * 128256 * 2) << "32 million elements";
  training.precision = job::FloatType::kFloat32;
  EXPECT_EQ(logits(at::kCUDA), int64_t{2048} * 128256 * 4);
  training.micro_batch_size = 1;
  const auto short_one = plan_memory(llama_8b(), layout, training, 100, {}, at::kCUDA);
  EXPECT_EQ(short_one.logits, int64_t{100} * 128256 * 4);
  EXPECT_EQ(plan_memory(llama_8b(), layout, training, 100, {{0, 5}, 1}, at::kCUDA).logits, 0);
}

// The table in docs/user/training.md: GB of GPU memory per rank.
TEST(MemoryPlan, TheTableInTheDocsMatches) {
  struct Row {
    const char* name;
    job::Masters masters;
    job::StateDtype moments, gradients;
  };
  constexpr auto kBfloat16 = job::StateDtype::kBfloat16;
  constexpr auto kNone = job::Masters::kNone, kSplit = job::Masters::kSplit;
  const Row rows[] = {
      {"fp32 | fp32 | fp32", job::Masters::kFloat32, job::StateDtype::kFloat32,
       job::StateDtype::kFloat32},
      {"split | fp32 | fp32", kSplit, job::StateDtype::kFloat32, job::StateDtype::kFloat32},
      {"split | fp32 | bf16", kSplit, job::StateDtype::kFloat32, kBfloat16},
      {"split | bf16 | bf16", kSplit, kBfloat16, kBfloat16},
      {"none | bf16 | bf16", kNone, kBfloat16, kBfloat16}};
  const std::string page =
      read_file(std::filesystem::path(XFFL_SOURCE_DIR) / "docs/user/training.md", 1 << 20);
  for (const Row& row : rows) {
    job::TrainingSpec training;
    training.precision = job::FloatType::kBfloat16;
    training.micro_batch_size = 2;
    training.masters = row.masters;
    training.moment_dtype = row.moments;
    training.gradient_dtype = row.gradients;
    std::string line = std::string("| ") + row.name + " | ";
    const int bytes = 2 +
                      (row.masters == kSplit  ? 2
                       : row.masters == kNone ? 0
                                              : 4) +
                      (row.moments == kBfloat16 ? 4 : 8) + (row.gradients == kBfloat16 ? 2 : 4);
    line += std::to_string(bytes) + " |";
    for (const int num_gpus : {1, 2, 4, 8}) {
      training.sharding = num_gpus == 1 ? job::Sharding::kNone : job::Sharding::kFull;
      const shard::FlatLayout layout(flat_parameters_of(llama::parameter_specs(llama_8b())),
                                     num_gpus);
      for (const auto recompute : {job::Recompute::kNone, job::Recompute::kFull}) {
        training.recompute = recompute;
        MemoryPlan plan = plan_memory(llama_8b(), layout, training, 2048, {}, at::kCUDA);
        if (num_gpus > 1) add_communicators(plan, 3, at::kCUDA);  // all, gathers, reductions
        char text[32];
        std::snprintf(text, sizeof text, "%s%.0f", recompute == job::Recompute::kNone ? " " : " / ",
                      static_cast<double>(plan.device()) * 1e-9);
        line += text;
      }
      line += " |";
    }
    EXPECT_NE(page.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace xffl::train
