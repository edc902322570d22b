// Ranks are threads over Gloo. Reference: the same data ranks without a pipeline, bit for bit: the
// same operations in the same order of micro-batches.
#include "xffl/train/pipeline.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <random>
#include <thread>

#include "support/ranks.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "trainer.h"
#include "update.h"
#include "xffl/llama/model_files.h"
#include "xffl/tokens/sampler.h"
#include "xffl/train/evaluate.h"

namespace xffl::train {
namespace {

constexpr int64_t kSteps = 3;
constexpr int64_t kVocabulary = 61;

checkpoint::LlamaConfig small_config() {
  checkpoint::LlamaConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 6;
  config.attention_bias = true;
  config.max_position_embeddings = 64;
  return config;
}

struct Setting {
  const char* name;
  int stages = 1;
  int num_data = 1;
  job::PipelineSchedule schedule = job::PipelineSchedule::k1F1B;
  job::Sharding sharding = job::Sharding::kNone;
  job::FloatType precision = job::FloatType::kFloat32;
  job::Recompute recompute = job::Recompute::kNone;
  job::Offload offload = job::Offload::kNone;
  int64_t batch_size = 12;
};

struct Outcome {
  std::vector<double> losses, norms;
  double nll = 0;
  std::vector<at::Tensor> masters;  // of rank 0
};

at::Tensor all_of(const llama::Values& values, const llama::ParameterSpec& spec) {
  const at::Tensor all = at::empty(spec.shape, at::kFloat);
  if (values.prepare) values.prepare(0, all.numel());
  values.read(0, {all.mutable_data_ptr<float>(), static_cast<size_t>(all.numel())});
  return all;
}

class PipelineModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
    const checkpoint::LlamaConfig config = small_config();
    const std::vector<llama::ParameterSpec> specs = llama::parameter_specs(config);
    const auto value = [&](size_t i) {
      const at::Tensor out = at::empty(specs[i].shape, at::kFloat);
      llama::initialize_parameter(specs[i], 0.1, 7, out);
      return out;
    };
    llama::write_model(dir_ / "base", config, specs, value, checkpoint::Dtype::kF32);
  }

  test::TempDir dir_;
};

class PipelineTraining : public PipelineModel, public testing::WithParamInterface<Setting> {
 protected:
  void SetUp() override {
    PipelineModel::SetUp();
    if (IsSkipped()) return;
    std::mt19937 random(3);
    tokens::TokenShardWriter writer(dir_ / "t.tokens", kVocabulary, 40, false);
    for (int i = 0; i < 30; ++i) {
      std::vector<int32_t> ids(2 + random() % 38);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocabulary);
      writer.add_document(ids);
    }
    writer.finish();
  }

  static job::TrainingSpec training_of(const Setting& setting) {
    job::TrainingSpec training;
    training.steps = kSteps;
    training.batch_size = setting.batch_size;
    training.micro_batch_size = 2;
    training.learning_rate = 1e-2;
    training.weight_decay = 0.1;
    training.precision = setting.precision;
    training.sharding = setting.sharding;
    training.recompute = setting.recompute;
    training.offload = setting.offload;
    training.pipeline = {setting.stages, setting.schedule};
    return training;
  }

  Outcome train_on(comm::Group& world, const Setting& setting) const {
    const job::TrainingSpec training = training_of(setting);
    Pipeline pipeline(world, setting.stages, at::kCPU);
    const ShardGroups shard_groups(pipeline.data(), training, 1);
    shard::Groups groups = shard_groups.groups();
    groups.stages = &pipeline.stages();
    LoadedModel model = load_model(dir_ / "base", {.device = at::kCPU,
                                                   .precision = training.precision,
                                                   .with_gradients = true,
                                                   .sharding = training.sharding,
                                                   .offload = training.offload,
                                                   .recompute = training.recompute,
                                                   .groups = groups,
                                                   .stage = pipeline.stage(),
                                                   .num_stages = pipeline.num_stages()});
    const Dataset data({dir_ / "t.tokens"}, ModelLimits(model.config), 0);
    const JobGroups one_group(world, 1);
    Trainer trainer(model, training, one_group, pipeline, at::kCPU);
    const auto batch_size = static_cast<uint64_t>(training.batch_size);
    tokens::Sampler mine(data.size(), batch_size, 1, pipeline.data().rank(),
                         pipeline.data().size());
    tokens::Sampler whole(data.size(), batch_size, 1, 0, 1);
    Outcome outcome;
    for (uint64_t step = 0; step < kSteps; ++step) {
      int64_t tokens = 0;
      for (const uint64_t index : whole.step_indices(step)) tokens += data.num_targets(index);
      const StepResult result = trainer.step(data, mine.step_indices(step), tokens, 1e-2);
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.grad_norm);
    }
    outcome.nll = evaluate(model, data, 4, pipeline, at::kCPU)->nll();
    MasterStream masters(model, world, pipeline, at::kCPU);
    for (size_t i = 0; world.rank() == 0 && i < model.specs.size(); ++i)
      outcome.masters.push_back(all_of(masters.values(i), model.specs[i]));
    masters.finish();
    return outcome;
  }

  std::vector<Outcome> train(const Setting& setting) const {
    std::vector<Outcome> all(static_cast<size_t>(setting.stages * setting.num_data));
    test::run_ranks(static_cast<int>(all.size()), [&](comm::Group& world) {
      all[static_cast<size_t>(world.rank())] = train_on(world, setting);
    });
    return all;
  }
};

TEST_P(PipelineTraining, EqualsOneStageBitForBit) {
  const std::vector<Outcome> found = train(GetParam());
  Setting plain = GetParam();
  plain.stages = 1;
  plain.sharding = job::Sharding::kNone;
  plain.offload = job::Offload::kNone;
  plain.recompute = job::Recompute::kNone;
  const Outcome expected = train(plain)[0];
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  for (const Outcome& one : found) {
    EXPECT_EQ(one.losses, expected.losses);
    EXPECT_EQ(one.norms, expected.norms);
    EXPECT_EQ(one.nll, expected.nll);
  }
  ASSERT_EQ(found[0].masters.size(), expected.masters.size());
  for (size_t i = 0; i < expected.masters.size(); ++i)
    EXPECT_TRUE(found[0].masters[i].equal(expected.masters[i])) << i;
}

constexpr auto kGpipe = job::PipelineSchedule::kGpipe, k1F1B = job::PipelineSchedule::k1F1B;
constexpr auto kNone = job::Sharding::kNone, kOptimizer = job::Sharding::kOptimizer;
constexpr auto kFp32 = job::FloatType::kFloat32;

INSTANTIATE_TEST_SUITE_P(
    Settings, PipelineTraining,
    testing::Values(
        Setting{"gpipe_2", 2, 1, kGpipe}, Setting{"gpipe_4", 4, 1, kGpipe},
        Setting{"s1f1b_2", 2, 1, k1F1B}, Setting{"s1f1b_4", 4, 1, k1F1B},
        Setting{"s1f1b_5_one_unit_each", 5, 1, k1F1B}, Setting{"gpipe_2x2", 2, 2, kGpipe},
        Setting{"s1f1b_2x2", 2, 2, k1F1B}, Setting{"s1f1b_2x2_zero1", 2, 2, k1F1B, kOptimizer},
        Setting{"gpipe_2x3_zero1", 2, 3, kGpipe, kOptimizer},
        Setting{"s1f1b_4x2_zero1_bf16", 4, 2, k1F1B, kOptimizer, job::FloatType::kBfloat16},
        Setting{"s1f1b_2x2_fp16", 2, 2, k1F1B, kNone, job::FloatType::kFloat16},
        Setting{"s1f1b_2_recompute", 2, 1, k1F1B, kNone, kFp32, job::Recompute::kFull},
        Setting{"s1f1b_2x2_offload", 2, 2, k1F1B, kOptimizer, kFp32, job::Recompute::kNone,
                job::Offload::kOptimizer},
        Setting{"s1f1b_2_offload_all", 2, 1, k1F1B, kNone, kFp32, job::Recompute::kFull,
                job::Offload::kParameters},
        // Data ranks with unequal numbers of sequences, some with none in the last micro-batch.
        Setting{"s1f1b_2x2_uneven", 2, 2, k1F1B, kNone, kFp32, job::Recompute::kNone,
                job::Offload::kNone, 9},
        Setting{"gpipe_2x2_idle_rank", 2, 2, kGpipe, kNone, kFp32, job::Recompute::kNone,
                job::Offload::kNone, 1},
        Setting{"s1f1b_4_one_micro_batch", 4, 1, k1F1B, kNone, kFp32, job::Recompute::kNone,
                job::Offload::kNone, 2}),
    [](const auto& setting) { return std::string(setting.param.name); });

TEST(Pipeline, DataRanksAreNeighboursAndStagesAStrideApart) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(6, [](comm::Group& world) {
    const Pipeline pipeline(world, 3, at::kCPU);
    EXPECT_EQ(pipeline.stage(), world.rank() / 2);
    EXPECT_EQ(pipeline.data().rank(), world.rank() % 2);
    EXPECT_EQ(pipeline.data().size(), 2);
    EXPECT_EQ(pipeline.num_stages(), 3);
    EXPECT_EQ(pipeline.is_last(), world.rank() >= 4);
  });
}

TEST(Pipeline, RejectsStagesThatDoNotDivideTheRanks) {
  const auto single_rank = comm::make_single_rank();
  const Error error = test::error_of([&] { Pipeline(*single_rank, 2, at::kCPU); });
  EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  EXPECT_NE(std::string(error.what()).find("does not divide the 1 ranks"), std::string::npos);
}

// Rank 0 writes the first unit for longer than the time-out.
TEST_F(PipelineModel, RanksWaitForTheWritingOfAUnit) {
  test::run_ranks(
      2,
      [&](comm::Group& world) {
        job::TrainingSpec training;
        training.sharding = job::Sharding::kFull;
        Pipeline pipeline(world, 1, at::kCPU);
        const ShardGroups shard_groups(pipeline.data(), training, 2);
        const LoadedModel model = load_model(dir_ / "base", {.with_gradients = true,
                                                             .sharding = training.sharding,
                                                             .groups = shard_groups.groups()});
        MasterStream masters(model, world, pipeline, at::kCPU);
        if (world.rank() == 0) {
          masters.values(0);
          std::this_thread::sleep_for(std::chrono::seconds(5));
        }
        EXPECT_NO_THROW(masters.finish());
      },
      std::chrono::seconds(2));
}

// A thread reads pieces of 32768 elements.
TEST(LoadModel, ReadsAllPiecesOfALargeParameter) {
  const test::TempDir dir;
  checkpoint::LlamaConfig config = small_config();
  config.vocab_size = 8001;
  const std::vector<llama::ParameterSpec> specs = llama::parameter_specs(config);
  const auto value = [&](size_t i) {
    const at::Tensor out = at::empty(specs[i].shape, at::kFloat);
    llama::initialize_parameter(specs[i], 0.1, 7, out);
    return out;
  };
  llama::write_model(dir / "base", config, specs, value, checkpoint::Dtype::kF32);
  LoadOptions options;
  options.with_gradients = true;
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const LoadedModel model = load_model(dir / "base", options);
    ASSERT_EQ(model.specs.size(), specs.size());
    for (size_t i = 0; i < specs.size(); ++i)
      EXPECT_TRUE(model.parameters->master_part(i).equal(value(i).flatten())) << specs[i].name;
  }
  at::set_num_threads(threads_before);
}

}  // namespace
}  // namespace xffl::train
