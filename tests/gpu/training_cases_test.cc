// Trainings of a small model, step by step. Reference of each test: the same training with another
// option, or on the CPU (trivially equal where the test itself runs on the CPU).
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "checkpoints.h"
#include "support/temp_dir.h"
#include "trainer.h"
#include "trainer_gpu.h"
#include "xffl/comm/group.h"
#include "xffl/llama/model_files.h"
#include "xffl/train/generate.h"

namespace xffl::trainer_gpu {
namespace {

using at::Device;

constexpr int64_t kSequences = 8;
constexpr double kLearningRate = 5e-3;

// A model whose values bfloat16 represents, and eight sequences of 20 to 90 tokens.
class TrainingFiles {
 public:
  TrainingFiles() {
    at::manual_seed(41);
    const checkpoint::LlamaConfig config = two_layers();
    const auto specs = llama::parameter_specs(config);
    const auto values = random_parameters(specs, at::kBFloat16, 0.1);
    llama::write_model(
        folder_ / "model", config, specs,
        [&](size_t i) { return llama::Values(values[i].to(at::kFloat)); }, checkpoint::Dtype::kF32);
    std::mt19937 random(3);
    tokens::TokenShardWriter writer(tokens(), static_cast<uint64_t>(config.vocab_size), 90, false);
    for (int64_t i = 0; i < kSequences; ++i) {
      std::vector<int32_t> ids(static_cast<size_t>(90 - 10 * i));
      for (int32_t& id : ids)
        id = static_cast<int32_t>(random() % static_cast<uint64_t>(config.vocab_size));
      writer.add_document(ids);
    }
    writer.finish();
  }
  std::filesystem::path model() const { return folder_ / "model"; }
  std::filesystem::path tokens() const { return folder_ / "train.tokens"; }
  std::filesystem::path state() const { return folder_ / "state"; }

 private:
  test::TempDir folder_;
};

job::JobSpec make_spec(job::FloatType precision) {
  job::JobSpec spec;
  spec.training.precision = precision;
  spec.training.steps = 100;
  spec.training.batch_size = spec.training.micro_batch_size = kSequences;
  spec.training.learning_rate = kLearningRate;
  spec.training.weight_decay = 0.1;
  return spec;
}

job::JobSpec pure_bf16() {
  job::JobSpec spec = make_spec(job::FloatType::kBfloat16);
  spec.training.masters = job::Masters::kNone;
  spec.training.moment_dtype = spec.training.gradient_dtype = job::StateDtype::kBfloat16;
  return spec;
}

job::JobSpec split_masters() {
  job::JobSpec spec = make_spec(job::FloatType::kBfloat16);
  spec.training.masters = job::Masters::kSplit;
  return spec;
}

// One rank's training of all sequences in every step.
class Training {
 public:
  Training(const TrainingFiles& files, job::JobSpec spec, Device device = test_device())
      : spec_(std::move(spec)),
        device_(device),
        world_(comm::make_single_rank()),
        pipeline_(*world_, 1, device),
        shard_groups_(pipeline_.data(), spec_.training, 1),
        model_(train::load_model(files.model(),
                                 train::load_options(spec_, device, shard_groups_.groups()))),
        data_({files.tokens()}, train::ModelLimits(model_.config), 0),
        groups_(*world_, 1),
        trainer_(model_, spec_.training, groups_, pipeline_, device) {}

  train::StepResult step() {
    std::vector<uint64_t> indices(data_.size());
    std::iota(indices.begin(), indices.end(), 0);
    int64_t tokens = 0;
    for (const uint64_t index : indices) tokens += data_.num_targets(index);
    const train::StepResult result = trainer_.step(data_, indices, tokens, kLearningRate);
    train::check_finite(result);
    losses_.push_back(result.loss);
    norms_.push_back(result.grad_norm);
    return result;
  }
  Training& steps(int count) {
    for (int i = 0; i < count; ++i) step();
    return *this;
  }

  const std::vector<double>& losses() const { return losses_; }
  const std::vector<double>& norms() const { return norms_; }
  /// Float32 copies on the CPU, one for each unit.
  std::vector<at::Tensor> masters() {
    std::vector<at::Tensor> all;
    for (int unit = 0; unit < model_.parameters->num_units(); ++unit) {
      const shard::UnitState whole = model_.parameters->gather_masters(unit);
      all.push_back(shard::masters_of(whole, {0, whole.master_S.numel()})
                        .to(at::kCPU, at::kFloat, false, true));
    }
    return all;
  }

  void save(const TrainingFiles& files) {
    train::TrainingState state;
    state.report.key = spec_.key;
    state.report.base_model_sha256 = spec_.base_model_sha256;
    state.report.trainer = "test";
    state.report.steps = static_cast<int64_t>(losses_.size());
    with_store(files, [&](train::Checkpoints& store) { store.save(state); });
  }
  /// The number of steps of the checkpoint, 0 without one.
  int64_t load(const TrainingFiles& files) {
    train::TrainingState state;
    bool loaded = false;
    with_store(files, [&](train::Checkpoints& store) { loaded = store.load(state); });
    return loaded ? state.report.steps : 0;
  }

  train::LoadedModel& model() { return model_; }

 private:
  template <class Use>
  void with_store(const TrainingFiles& files, const Use& use) {
    spec_.state_path = files.state();
    train::Checkpoints store(spec_, *world_, device_, model_, trainer_, groups_);
    use(store);
  }

  job::JobSpec spec_;
  Device device_;
  std::unique_ptr<comm::Group> world_;
  train::Pipeline pipeline_;
  train::ShardGroups shard_groups_;
  train::LoadedModel model_;
  train::Dataset data_;
  train::JobGroups groups_;
  train::Trainer trainer_;
  std::vector<double> losses_, norms_;
};

void expect_same_bits(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                      const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(found[i].equal(expected[i])) << what << ", unit " << i;
}

void expect_losses_near(const std::vector<double>& found, const std::vector<double>& expected,
                        double tolerance, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(found[i] / expected[i], 1, tolerance) << what << ", step " << i + 1;
}

// --- micro-batches ---

// Reference: one micro-batch of all sequences. Loss and gradient norm of three steps: float32 1e-5,
// bfloat16 1e-2.
TEST_F(TrainerGpu, MicroBatchesTrainAsOneBatch) {
  const TrainingFiles files;
  for (const job::JobSpec& spec : {make_spec(job::FloatType::kFloat32), split_masters()}) {
    const bool wide = spec.training.precision == job::FloatType::kFloat32;
    Training whole(files, spec);
    whole.steps(3);
    for (const int64_t size : {1, 3}) {
      job::JobSpec divided = spec;
      divided.training.micro_batch_size = size;
      Training parts(files, divided);
      parts.steps(3);
      const std::string what = "micro-batches of " + std::to_string(size);
      expect_losses_near(parts.losses(), whole.losses(), wide ? 1e-5 : 1e-2, what);
      EXPECT_NEAR(parts.norms()[0] / whole.norms()[0], 1, wide ? 1e-5 : 1e-2) << what;
    }
  }
}

// --- resume ---

// Reference: four uninterrupted steps, the same bits of losses and masters.
TEST_F(TrainerGpu, ResumeGivesTheSameBits) {
  const Deterministic deterministic;
  job::JobSpec lora = make_spec(job::FloatType::kBfloat16);
  lora.training.lora = {4, 8, 0.1, {"q_proj", "v_proj"}};
  const std::pair<const char*, job::JobSpec> settings[] = {
      {"fp32", make_spec(job::FloatType::kFloat32)},
      {"bf16, fp32 masters", make_spec(job::FloatType::kBfloat16)},
      {"bf16, split masters", split_masters()},
      {"pure bf16", pure_bf16()},
      {"bf16, LoRA with dropout", lora}};
  for (auto [name, spec] : settings) {
    const TrainingFiles files;
    spec.key = {"p", "0001", 1, "alba", 1, std::string(32, 'a')};
    spec.base_model_path = files.model();
    spec.base_model_sha256 = std::string(64, 'b');
    spec.train_paths = {files.tokens()};
    spec.update_path = "update";
    spec.report_path = "report.json";
    spec.metrics_path = "metrics.jsonl";
    Training whole(files, spec);
    whole.steps(4);
    Training interrupted(files, spec);
    interrupted.steps(2).save(files);
    Training resumed(files, spec);
    ASSERT_EQ(resumed.load(files), 2) << name;
    resumed.steps(2);
    EXPECT_EQ(resumed.losses(), std::vector(whole.losses().begin() + 2, whole.losses().end()))
        << name;
    expect_same_bits(resumed.masters(), whole.masters(), name);
    EXPECT_NE(whole.losses()[2], whole.losses()[0]) << name;
  }
}

// --- LoRA ---

// The adapter changes, the model does not; a GPU is also compared with the CPU: float32 loss within
// 1e-4.
TEST_F(TrainerGpu, LoraTrainsOnlyTheAdapter) {
  const TrainingFiles files;
  job::JobSpec spec = make_spec(job::FloatType::kFloat32);
  spec.training.lora = {
      4, 8, 0, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}};
  Training training(files, spec), on_cpu(files, spec, at::kCPU);
  const auto frozen = [&] {
    std::vector<at::Tensor> all;
    for (const shard::UnitState& state : training.model().frozen->states())
      all.push_back(state.master_S.to(at::kCPU, at::kFloat, false, true));
    return all;
  };
  const std::vector<at::Tensor> before = frozen();
  training.steps(12);
  on_cpu.steps(12);
  EXPECT_LT(training.losses().back(), 0.98 * training.losses().front());
  expect_losses_near(training.losses(), on_cpu.losses(), 1e-4, "against the CPU");
  expect_same_bits(frozen(), before, "the model beside the adapter");
}

// --- storage of masters, gradients and moments ---

// Reference: float32 masters. The first loss and the masters after one step have the same bits;
// later losses are within 1e-3: copies differ where a master lies between two bfloat16 numbers.
TEST_F(TrainerGpu, SplitMastersTakeTheStepsOfFloat32Masters) {
  const Deterministic deterministic;
  const TrainingFiles files;
  Training wide(files, make_spec(job::FloatType::kBfloat16)), split(files, split_masters());
  wide.step();
  split.step();
  EXPECT_EQ(split.losses(), wide.losses());
  EXPECT_EQ(split.norms(), wide.norms());
  expect_same_bits(split.masters(), wide.masters(), "after one step");
  wide.steps(5);
  split.steps(5);
  expect_losses_near(split.losses(), wide.losses(), 1e-3, "split masters");
  EXPECT_LT(split.losses().back(), 0.98 * split.losses().front());
}

// Reference: float32 masters, moments and gradients. The first loss has the same bits; losses of
// ten steps are within 3e-2, the cost of steps rounded to bfloat16 at this learning rate.
TEST_F(TrainerGpu, PureBf16Learns) {
  const Deterministic deterministic;
  const TrainingFiles files;
  Training wide(files, make_spec(job::FloatType::kBfloat16)), pure(files, pure_bf16());
  wide.steps(10);
  pure.steps(10);
  EXPECT_EQ(pure.losses()[0], wide.losses()[0]);
  expect_losses_near(pure.losses(), wide.losses(), 3e-2, "pure bf16");
  EXPECT_LT(pure.losses().back(), 0.95 * pure.losses().front());
}

// Reference: the CPU. Losses of ten steps within 2e-2, like Hugging Face's in pure bfloat16.
TEST_F(TrainerGpu, PureBf16FollowsTheCpu) {
  const TrainingFiles files;
  Training here(files, pure_bf16()), on_cpu(files, pure_bf16(), at::kCPU);
  here.steps(10);
  on_cpu.steps(10);
  expect_losses_near(here.losses(), on_cpu.losses(), 2e-2, "pure bf16");
}

// --- offload ---

// Reference: offload none. On a CPU: the same bits. On a GPU the first loss has the same bits and
// the gradient norm is within 1e-7, because the host adds squares in float32 and the GPU in
// float64; the host's AdamW rounds differently from the GPU's, so later losses are within 1e-5
// (float32) and 2e-3 (bfloat16). Offloaded optimizer and offloaded parameters both step on the
// host: the same bits.
TEST_F(TrainerGpu, OffloadTakesTheSameSteps) {
  const Deterministic deterministic;
  const TrainingFiles files;
  for (const job::FloatType precision : {job::FloatType::kFloat32, job::FloatType::kBfloat16}) {
    const std::string name(job::to_string(precision));
    Training plain(files, make_spec(precision));
    plain.steps(4);
    std::vector<std::unique_ptr<Training>> offloaded;
    for (const job::Offload offload : {job::Offload::kOptimizer, job::Offload::kParameters}) {
      job::JobSpec spec = make_spec(precision);
      spec.training.offload = offload;
      offloaded.push_back(std::make_unique<Training>(files, spec));
      Training& found = *offloaded.back();
      found.steps(4);
      const std::string what = name + ", offload " + std::string(job::to_string(offload));
      EXPECT_EQ(found.losses()[0], plain.losses()[0]) << what;
      EXPECT_NEAR(found.norms()[0] / plain.norms()[0], 1, test_device().is_cpu() ? 1e-9 : 1e-7)
          << what;
      const bool wide = precision == job::FloatType::kFloat32;
      expect_losses_near(found.losses(), plain.losses(), wide ? 1e-5 : 2e-3, what);
      if (test_device().is_cpu()) expect_same_bits(found.masters(), plain.masters(), what);
    }
    EXPECT_EQ(offloaded[0]->losses(), offloaded[1]->losses()) << name;
    expect_same_bits(offloaded[0]->masters(), offloaded[1]->masters(), name);
    EXPECT_LT(plain.losses().back(), plain.losses().front());
  }
}

// --- generate ---

std::vector<llama::Weight> values_on(const std::vector<at::Tensor>& values, Device device,
                                     at::ScalarType dtype) {
  std::vector<llama::Weight> weights(values.size());
  for (size_t i = 0; i < values.size(); ++i) weights[i].value = values[i].to(device, dtype);
  return weights;
}

// Reference: logits of the whole text at once, in float64 on the CPU. Each token's logit is the
// largest there, or below it by at most 1e-4 (float32) or 3e-2 (bfloat16) of the logits' spread;
// in float32 the tokens are the CPU's.
TEST_F(TrainerGpu, GenerateTakesTheMostLikelyTokens) {
  const AttentionOfAnyLength attention;
  const checkpoint::LlamaConfig config = two_layers();
  const auto specs = llama::parameter_specs(config);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(42);
    const auto values = random_parameters(specs, dtype, 0.2);
    llama::Model exact(config, values_on(values, at::kCPU, at::kDouble));
    const at::Tensor& head_VD = values[specs.size() - 2];
    ASSERT_EQ(specs[specs.size() - 2].name, "lm_head.weight");
    for (const int64_t prompt_size : {1, 64, 130}) {
      const at::Tensor ids = at::randint(config.vocab_size, {prompt_size}, at::kLong);
      const std::vector<int64_t> prompt(ids.const_data_ptr<int64_t>(),
                                        ids.const_data_ptr<int64_t>() + prompt_size);
      const auto greedy = [&](Device device) {
        llama::Model model(config, values_on(values, device, dtype));
        std::vector<int64_t> text = prompt;
        train::GenerateOptions options;
        options.max_new_tokens = 40;
        train::generate(model, prompt, options, [&](int64_t id) {
          text.push_back(id);
          return true;
        });
        return text;
      };
      const std::vector<int64_t> text = greedy(test_device());
      ASSERT_EQ(text.size(), prompt.size() + 40);
      if (dtype == at::kFloat) {
        EXPECT_EQ(text, greedy(at::kCPU)) << prompt_size;
      }
      const at::Tensor tokens_1T = at::tensor(at::ArrayRef<int64_t>(text), at::kLong).unsqueeze(0);
      const at::Tensor logits_TV = at::mm(exact.hidden(tokens_1T)[0], head_VD.t());
      const double tolerance = dtype == at::kFloat ? 1e-4 : 3e-2;
      for (int64_t t = prompt_size; t < tokens_1T.size(1); ++t) {
        const at::Tensor logits_V = logits_TV[t - 1];
        const double below =
            (logits_V.max() - logits_V[tokens_1T[0][t].item<int64_t>()]).item<double>();
        EXPECT_LE(below, tolerance * logits_V.std().item<double>())
            << dtype << ", prompt of " << prompt_size << ", token " << t;
      }
      const std::vector<int64_t> made(text.begin() + prompt_size, text.end());
      EXPECT_NE(std::count(made.begin(), made.end(), made[0]), 40) << "one token only";
    }
  }
}

}  // namespace
}  // namespace xffl::trainer_gpu
