#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <numbers>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/llama/model_files.h"

namespace xffl::llama {
namespace {

checkpoint::LlamaConfig folder_config() {
  checkpoint::LlamaConfig config;
  config.vocab_size = 9000;  // the writer converts 4096 values at a time, in blocks of 512 KiB
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  return config;
}

at::Tensor random_value(const ParameterSpec& spec, uint64_t seed) {
  const at::Tensor value = at::empty(spec.shape, at::kFloat);
  initialize_parameter(spec, 0.02, seed, value);
  return value;
}

std::string error_of(const checkpoint::ModelFolder& folder, const checkpoint::LlamaConfig& config) {
  try {
    check_parameters(folder, parameter_specs(config));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRejected);
    return error.what();
  }
  return "";
}

TEST(Weights, WrittenModelsReadBack) {
  const test::TempDir dir;
  const checkpoint::LlamaConfig config = folder_config();
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  for (const auto dtype :
       {checkpoint::Dtype::kF32, checkpoint::Dtype::kBF16, checkpoint::Dtype::kF16}) {
    const std::filesystem::path path = dir / std::string(checkpoint::to_string(dtype));
    write_model(
        path, config, specs, [&](size_t i) { return random_value(specs[i], 1); }, dtype);
    const checkpoint::ModelFolder folder(path);
    check_parameters(folder, specs);
    EXPECT_EQ(checkpoint::read_llama_config(path).head_dim, 8);
    EXPECT_EQ(checkpoint::read_llama_config(path).torch_dtype,
              dtype == checkpoint::Dtype::kF32    ? "float32"
              : dtype == checkpoint::Dtype::kBF16 ? "bfloat16"
                                                  : "float16");
    const auto torch_dtype = dtype == checkpoint::Dtype::kF32    ? at::kFloat
                             : dtype == checkpoint::Dtype::kBF16 ? at::kBFloat16
                                                                 : at::kHalf;
    for (const ParameterSpec& spec : specs) {
      const at::Tensor found = at::empty(spec.shape, at::kFloat);
      read_parameter(folder, spec, 0, found);
      EXPECT_TRUE(found.equal(random_value(spec, 1).to(torch_dtype).to(at::kFloat))) << spec.name;
    }
  }
}

TEST(Weights, NamesTheTensorThatDoesNotFitTheConfig) {
  const test::TempDir dir;
  const checkpoint::LlamaConfig config = folder_config();
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  write_model(
      dir / "m", config, specs, [&](size_t i) { return random_value(specs[i], 1); },
      checkpoint::Dtype::kF32);
  const checkpoint::ModelFolder folder(dir / "m");
  checkpoint::LlamaConfig other = config;
  other.num_layers = 3;
  EXPECT_THAT(error_of(folder, other),
              testing::HasSubstr("model.layers.2.self_attn.q_proj.weight is missing"));
  other.num_layers = 1;
  EXPECT_THAT(error_of(folder, other), testing::HasSubstr("model.layers.1."));
  other = config;
  other.intermediate_size = 50;
  EXPECT_THAT(error_of(folder, other),
              testing::HasSubstr("[48, 32]; config.json requires [50, 32]"));
  other = config;
  other.tie_word_embeddings = true;  // lm_head.weight is present and ignored
  EXPECT_EQ(error_of(folder, other), "");
}

TEST(Weights, RotaryTablesOfOldCheckpointsAreIgnored) {
  const test::TempDir dir;
  const checkpoint::LlamaConfig config = folder_config();
  std::vector<ParameterSpec> specs = parameter_specs(config);
  specs.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}, 1});
  write_model(
      dir / "m", config, specs, [&](size_t i) { return random_value(specs[i], 1); },
      checkpoint::Dtype::kF32);
  EXPECT_EQ(error_of(checkpoint::ModelFolder(dir / "m"), config), "");
}

TEST(Weights, RandomValuesDependOnSeedAndNameOnly) {
  const ParameterSpec spec{"model.embed_tokens.weight", {500, 200}, 0};
  const at::Tensor first = random_value(spec, 5);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(first.equal(random_value(spec, 5)));
  at::set_num_threads(threads);
  EXPECT_FALSE(first.equal(random_value(spec, 6)));
  EXPECT_FALSE(first.equal(random_value({"lm_head.weight", {500, 200}, 0}, 5)));
  // 100,000 draws: the mean within 5 standard errors, the deviation within 1 %.
  EXPECT_LT(std::abs(first.mean().item<double>()), 5 * 0.02 / std::sqrt(1e5));
  EXPECT_NEAR(first.std().item<double>(), 0.02, 2e-4);
  const at::Tensor wide = at::empty(spec.shape, at::kFloat);
  initialize_parameter(spec, 0.1, 5, wide);
  EXPECT_NEAR(wide.std().item<double>(), 0.1, 1e-3);
  EXPECT_NEAR((first.pow(4).mean() / first.pow(2).mean().pow(2)).item<double>(), 3, 0.1);
  EXPECT_TRUE(random_value({"model.norm.weight", {9}, 0}, 5).eq(1).all().item<bool>());
  EXPECT_TRUE(
      random_value({"model.layers.0.mlp.up_proj.bias", {9}, 0}, 5).eq(0).all().item<bool>());
}

// Box and Muller's method makes a pair of two uniform numbers: radius and angle.
TEST(Weights, RandomPairsAreIndependent) {
  const ParameterSpec spec{"lm_head.weight", {50'001, 2}, 0};
  const at::Tensor pairs = random_value(spec, 5).to(at::kDouble) / 0.02;
  const at::Tensor radius = at::exp(pairs.square().sum(1) / -2) - 0.5;
  const at::Tensor radians = at::atan2(pairs.select(1, 1), pairs.select(1, 0));
  const at::Tensor angle = (radians / (2 * std::numbers::pi)).remainder(1) - 0.5;
  const auto covariance = [](const at::Tensor& x, const at::Tensor& y) {
    return std::abs((x * y).mean().item<double>());
  };
  const double limit = 5 / 12.0 / std::sqrt(5e4);  // 5 standard errors; 1 / 12 for equal numbers
  EXPECT_LT(covariance(angle, radius), limit);
  EXPECT_LT(covariance(angle.narrow(0, 0, 50'000), radius.narrow(0, 1, 50'000)), limit);
}

TEST(Parameters, AnAdaptersTensorsHaveTheUnitsOfTheirBlocks) {
  checkpoint::LoraConfig lora{4, 8, 0, {"q_proj", "v_proj"}};
  lora.modules_to_save = {"embed_tokens", "lm_head"};
  std::vector<int> units;
  for (const ParameterSpec& spec : adapter_specs(folder_config(), lora)) units.push_back(spec.unit);
  EXPECT_THAT(units, testing::ElementsAre(0, 1, 1, 1, 1, 2, 2, 2, 2, 3));
}

}  // namespace
}  // namespace xffl::llama
