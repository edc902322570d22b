// Reference: adapter_config.json and tensor names as PEFT 0.21 writes them.
#include "xffl/checkpoint/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "files.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kPeft = R"({
  "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
  "base_model_name_or_path": "some/model", "bias": "none", "exclude_modules": null,
  "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true, "loftq_config": {},
  "lora_alpha": 8, "lora_bias": false, "lora_dropout": 0.05, "megatron_core": "megatron.core",
  "modules_to_save": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16,
  "r": 4, "rank_pattern": {}, "target_modules": ["v_proj", "q_proj"], "task_type": "CAUSAL_LM",
  "use_dora": false, "use_rslora": false, "some_new_key": [1]})";

LlamaConfig small() {
  LlamaConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 20;
  return config;
}

std::string with(std::string from, std::string to) {
  std::string text = kPeft;
  return text.replace(text.find(from), from.size(), to);
}

TEST(LoraConfig, ReadsAnAdapterConfigOfPeft) {
  const LoraConfig config = parse_lora_config(kPeft, "a");
  EXPECT_EQ(config, (LoraConfig{4, 8, 0.05, {"q_proj", "v_proj"}}));
  EXPECT_EQ(config.scaling(), 2);
  EXPECT_EQ(parse_lora_config(format_lora_config(config), "a"), config);
  const LoraConfig stabilized =
      parse_lora_config(with(R"("use_rslora": false)", R"("use_rslora": true)"), "a");
  EXPECT_EQ(stabilized.scaling(), 4);
  EXPECT_EQ(parse_lora_config(format_lora_config(stabilized), "a"), stabilized);
  EXPECT_FALSE(stabilized.applies_as(config));
  EXPECT_TRUE(config.applies_as({4, 8, 0.5, {"q_proj", "v_proj"}})) << "only the dropout differs";
  const LoraConfig decomposed =
      parse_lora_config(with(R"("use_dora": false)", R"("use_dora": true)"), "a");
  EXPECT_TRUE(decomposed.weight_decomposed);
  EXPECT_EQ(parse_lora_config(format_lora_config(decomposed), "a"), decomposed);
  EXPECT_FALSE(decomposed.applies_as(config));
  const LoraConfig whole = parse_lora_config(
      with(R"("modules_to_save": null)", R"("modules_to_save": ["lm_head", "embed_tokens"])"), "a");
  EXPECT_THAT(whole.modules_to_save, ElementsAre("embed_tokens", "lm_head"));
  EXPECT_EQ(parse_lora_config(format_lora_config(whole), "a"), whole);
  EXPECT_FALSE(whole.applies_as(config));
}

TEST(LoraConfig, RejectsUnsupportedSettings) {
  const auto kind = [](const std::string& text) {
    return thrown_by([&] { parse_lora_config(text, "adapter_config.json"); });
  };
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {R"("rank_pattern": {})", R"("rank_pattern": {"q_proj": 2})"},
           {R"("modules_to_save": null)", R"("modules_to_save": ["norm"])"},
           {R"("modules_to_save": null)", R"("modules_to_save": ["lm_head", "lm_head"])"},
           {R"("bias": "none")", R"("bias": "all")"},
           {R"("init_lora_weights": true)", R"("init_lora_weights": "pissa")"},
           {R"(["v_proj", "q_proj"])", R"("all-linear")"},
           {R"(["v_proj", "q_proj"])", R"(["v_proj", "lm_head"])"},
           {R"(["v_proj", "q_proj"])", R"(["v_proj", "v_proj"])"},
           {R"(["v_proj", "q_proj"])", R"([])"},
           {R"("LORA")", R"("LOHA")"}})
    EXPECT_EQ(kind(with(from, to)).kind, ErrorKind::kUnsupported) << to;
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {R"("use_dora": false)", R"("use_dora": 1)"},
           {R"("modules_to_save": null)", R"("modules_to_save": "lm_head")"},
           {R"("r": 4)", R"("r": 0)"},
           {R"("r": 4)", R"("r": 1000000)"},
           {R"("r": 4)", R"("r": 4.5)"},
           {R"("lora_alpha": 8)", R"("lora_alpha": 0)"},
           {R"("lora_alpha": 8)", R"("lora_alpha": "x")"},
           {R"("lora_dropout": 0.05)", R"("lora_dropout": 1)"},
           {R"("r": 4)", R"("r": 4, "r": 5)"}})
    EXPECT_EQ(kind(with(from, to)).kind, ErrorKind::kCorrupt) << to;
}

// Each setting changes the results of an adapter.
TEST(LoraConfig, RejectsEachSettingThatItDoesNotImplement) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"use_qalora", "true"},
           {"use_bdlora", "true"},
           {"lora_bias", "true"},
           {"fan_in_fan_out", "true"},
           {"rank_pattern", R"({"q_proj": 2})"},
           {"alpha_pattern", R"({"q_proj": 2})"},
           {"layers_to_transform", "[0]"},
           {"layers_to_transform", "0"},
           {"layer_replication", "[[0, 1]]"},
           {"trainable_token_indices", "[1]"},
           {"exclude_modules", R"(["v_proj"])"},
           {"target_parameters", R"(["experts.down_proj"])"},
           {"megatron_config", R"({"a": 1})"},
           {"alora_invocation_tokens", "[1]"},
           {"arrow_config", R"({"a": 1})"},
           {"kasa_config", R"({"a": 1})"},
           {"monteclora_config", R"({"a": 1})"},
           {"velora_config", R"({"a": 1})"}}) {
    Json document = parse_json(kPeft, "a");
    document[key] = parse_json("{\"value\": " + value + "}", "a")["value"];
    const Thrown thrown = thrown_by([&] { parse_lora_config(document.dump(), "a"); });
    EXPECT_EQ(thrown.kind, ErrorKind::kUnsupported) << key;
    EXPECT_THAT(thrown.message, HasSubstr(key));
  }
}

TEST(LoraConfig, ChecksTheConfigOfAnExperiment) {
  EXPECT_THAT(checked_lora_config({2, 4, 0, {"down_proj", "k_proj"}}, "t").target_modules,
              ElementsAre("k_proj", "down_proj"));
  const auto problem = [](const LoraConfig& config) {
    const Thrown thrown = thrown_by([&] { checked_lora_config(config, "training.lora"); });
    EXPECT_EQ(thrown.kind, ErrorKind::kConfig);
    return thrown.message;
  };
  EXPECT_THAT(problem({0, 4, 0, {"q_proj"}}), HasSubstr("training.lora.rank is 0"));
  EXPECT_THAT(problem({2, 0, 0, {"q_proj"}}), HasSubstr("training.lora.alpha is 0"));
  EXPECT_THAT(problem({2, 4, 1, {"q_proj"}}), HasSubstr("training.lora.dropout is 1"));
  EXPECT_THAT(problem({2, 4, 0, {"embed"}}),
              HasSubstr("training.lora.target_modules names 'embed'"));
  EXPECT_THAT(problem({2, 4, 0, {"q_proj"}, false, false, {"wte"}}),
              HasSubstr("training.lora.modules_to_save names 'wte'"));
}

TEST(LoraTensors, HaveTheNamesAndShapesOfPeft) {
  const auto tensors = lora_tensors(small(), {4, 8, 0, {"k_proj", "down_proj"}}, Dtype::kBF16);
  ASSERT_EQ(tensors.size(), 8u);
  EXPECT_EQ(tensors[0],
            (TensorSpec{"base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight",
                        Dtype::kBF16,
                        {4, 48}}));
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{40, 4}));
  EXPECT_EQ(tensors[6].name, "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight");
  EXPECT_EQ(tensors[6].shape, (std::vector<int64_t>{4, 80}));
  EXPECT_EQ(tensors[7].shape, (std::vector<int64_t>{48, 4}));
}

TEST(LoraTensors, OfDoraHaveMagnitudes) {
  const LoraConfig lora{4, 8, 0, {"k_proj", "down_proj"}, false, true};
  const auto tensors = lora_tensors(small(), lora, Dtype::kBF16);
  ASSERT_EQ(tensors.size(), 12u);
  EXPECT_EQ(tensors[4],
            (TensorSpec{"base_model.model.model.layers.0.self_attn.k_proj.lora_magnitude_vector",
                        Dtype::kBF16,
                        {40}}));
  EXPECT_EQ(tensors[11].name,
            "base_model.model.model.layers.1.mlp.down_proj.lora_magnitude_vector");
  EXPECT_EQ(tensors[11].shape, (std::vector<int64_t>{48}));
}

TEST(LoraTensors, OfWholeModulesComeFirstAndLast) {
  LlamaConfig model = small();
  model.vocab_size = 97;
  const LoraConfig lora{4, 8, 0, {"k_proj"}, false, false, {"embed_tokens", "lm_head"}};
  const auto tensors = lora_tensors(model, lora, Dtype::kF32);
  ASSERT_EQ(tensors.size(), 6u);
  EXPECT_EQ(tensors.front(),
            (TensorSpec{"base_model.model.model.embed_tokens.weight", Dtype::kF32, {97, 48}}));
  EXPECT_EQ(tensors.back(), (TensorSpec{"base_model.model.lm_head.weight", Dtype::kF32, {97, 48}}));
  model.tie_word_embeddings = true;
  const Thrown thrown = thrown_by([&] { lora_tensors(model, lora, Dtype::kF32); });
  EXPECT_EQ(thrown.kind, ErrorKind::kUnsupported);
  EXPECT_THAT(thrown.message, HasSubstr("tie_word_embeddings"));
}

TEST(LoraTensors, InitialValuesDependOnTheSeedAlone) {
  const TensorSpec a{"x.lora_A.weight", Dtype::kF32, {8, 100}};
  std::vector<float> whole(800), part(10), other(800);
  initialize_lora(a, 7, 0, whole);
  initialize_lora(a, 7, 795 - 10, part);
  initialize_lora(a, 8, 0, other);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 785));
  EXPECT_NE(whole, other);
  double sum = 0, squares = 0;
  for (const float value : whole) {
    EXPECT_LE(std::fabs(value), 0.1f);
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(sum / 800, 0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / 800), 0.1 / std::sqrt(3.0), 0.004);
  initialize_lora({"x.lora_B.weight", Dtype::kF32, {100, 8}}, 7, 0, whole);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), 0.0f), 800);
}

// Rows of 40,000 elements are longer than a piece. The lengths are hand sums.
TEST(LoraTensors, InitialMagnitudesAreTheLengthsOfTheRows) {
  const test::TempDir dir;
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  constexpr int64_t kColumns = 40'000;
  std::vector<float> values(3 * kColumns, 0.5f);
  std::fill(values.begin() + kColumns, values.begin() + 2 * kColumns, 0.0f);
  values[2 * kColumns] = 2;
  values[3 * kColumns - 1] = 1e19f;
  ModelWriter writer(dir / "base", {{name, Dtype::kF32, {3, kColumns}}});
  writer.write(bytes_of(values));
  writer.finish();
  const ModelFolder base(dir / "base");
  const TensorSpec spec{
      "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", Dtype::kF32, {3}};
  std::vector<float> lengths(3), last(1);
  initialize_lora(spec, 7, 0, lengths, &base);
  EXPECT_THAT(lengths, ElementsAre(100.0f, 0.0f, 1e19f));
  initialize_lora(spec, 8, 2, last, &base);
  EXPECT_EQ(last[0], 1e19f);
  EXPECT_EQ(thrown_by([&] { initialize_lora(spec, 7, 0, lengths); }).kind, ErrorKind::kInternal);

  const auto rejected = [&](const TensorSpec& other) {
    const Thrown thrown = thrown_by([&] { initialize_lora(other, 7, 0, lengths, &base); });
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    return thrown.message;
  };
  TensorSpec more = spec, missing = spec;
  more.shape = {4};
  missing.name = "base_model.model.model.layers.9.self_attn.q_proj.lora_magnitude_vector";
  EXPECT_THAT(rejected(more), HasSubstr(name + "' has the shape [3, 40000]; the adapter's " +
                                        more.name + " needs a matrix with 4 rows"));
  EXPECT_THAT(rejected(missing), HasSubstr("layers.9.self_attn.q_proj.weight' is missing"));
}

TEST(LoraTensors, InitialMagnitudesOfABf16ModelAreTheLengthsOfItsRows) {
  const test::TempDir dir;
  ModelWriter writer(dir / "base", {{"model.layers.0.mlp.up_proj.weight", Dtype::kBF16, {2, 2}}});
  std::vector<std::byte> bytes(8);
  from_float(std::vector<float>{3, 4, 6, 8}, Dtype::kBF16, bytes);
  writer.write(bytes);
  writer.finish();
  const ModelFolder base(dir / "base");
  std::vector<float> lengths(2);
  initialize_lora(
      {"base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", Dtype::kF32, {2}}, 7, 0,
      lengths, &base);
  EXPECT_THAT(lengths, ElementsAre(5.0f, 10.0f));
}

TEST(LoraTensors, InitialWholeModulesAreTheModels) {
  const test::TempDir dir;
  ModelWriter writer(dir / "base", {{"lm_head.weight", Dtype::kBF16, {3, 2}}});
  std::vector<std::byte> bytes(12);
  from_float(std::vector<float>{1, 2, -3, 4, 0.5f, 6}, Dtype::kBF16, bytes);
  writer.write(bytes);
  writer.finish();
  const ModelFolder base(dir / "base");
  TensorSpec spec{"base_model.model.lm_head.weight", Dtype::kF32, {3, 2}};
  std::vector<float> values(3);
  initialize_lora(spec, 7, 2, values, &base);
  EXPECT_THAT(values, ElementsAre(-3.0f, 4.0f, 0.5f));
  spec.shape = {3, 1};
  const Thrown thrown = thrown_by([&] { initialize_lora(spec, 7, 0, values, &base); });
  EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
  EXPECT_THAT(thrown.message, HasSubstr("has the shape [3, 2]; the adapter's"));
}

TEST(LoraTensors, ARowWithoutAFiniteLengthIsRejected) {
  const test::TempDir dir;
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  ModelWriter writer(dir / "base", {{name, Dtype::kF32, {2, 2}}});
  writer.write(bytes_of({1, 2, 3e38f, 3e38f}));
  writer.finish();
  const ModelFolder base(dir / "base");
  std::vector<float> lengths(2);
  const Thrown thrown = thrown_by([&] {
    initialize_lora(
        {"base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", Dtype::kF32, {2}}, 7,
        0, lengths, &base);
  });
  EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
  EXPECT_THAT(thrown.message, HasSubstr(name + "', row 1 has no finite length"));
}

TEST(LoraFolder, IsReadAsATensorFolderAndCheckedAgainstTheModel) {
  const test::TempDir dir;
  const LoraConfig lora{4, 8, 0, {"q_proj"}};
  write_initial_lora(dir / "a", small(), lora, 7);
  const ModelFolder folder(dir / "a");
  EXPECT_TRUE(folder.is_adapter());
  EXPECT_EQ(folder.tensors().size(), 4u);
  EXPECT_EQ(read_lora_config(dir / "a"), lora);
  check_lora_tensors(folder, small(), lora);
  const std::string first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const std::string second = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
  EXPECT_FALSE(std::ranges::equal(folder.data(first), folder.data(second)))
      << "each tensor has its own random values";
  LlamaConfig other = small();
  other.head_dim = 22;
  const auto check = [&](const LlamaConfig& model, const LoraConfig& config) {
    return thrown_by([&] { check_lora_tensors(folder, model, config); }).kind;
  };
  EXPECT_EQ(check(other, lora), ErrorKind::kRejected);
  EXPECT_EQ(check(small(), {8, 8, 0, {"q_proj"}}), ErrorKind::kRejected);
  EXPECT_EQ(check(small(), {4, 8, 0, {"q_proj", "v_proj"}}), ErrorKind::kRejected);
}

// The embedding is longer than a piece of 2^20 elements.
TEST(LoraFolder, HoldsTheWholeEmbeddingOfTheModel) {
  const test::TempDir dir;
  LlamaConfig model = small();
  model.vocab_size = 30'000;
  const std::string name = "model.embed_tokens.weight";
  std::vector<float> values(30'000 * 48);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  ModelWriter writer(dir / "base", {{name, Dtype::kF32, {30'000, 48}}});
  writer.write(bytes_of(values));
  writer.finish();
  const ModelFolder base(dir / "base");
  const LoraConfig lora{4, 8, 0, {"q_proj"}, false, false, {"embed_tokens"}};
  write_initial_lora(dir / "a", model, lora, 7, &base);
  const ModelFolder adapter(dir / "a");
  EXPECT_TRUE(std::ranges::equal(adapter.data("base_model.model." + name), base.data(name)));
}

}  // namespace
}  // namespace xffl::checkpoint
