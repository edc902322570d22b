#include "xffl/checkpoint/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "files.h"
#include "support/temp_dir.h"
#include "xffl/base/json.h"

namespace xffl::checkpoint {
namespace {

using testing::HasSubstr;

// config.json of the same model from transformers 4 and 5, without irrelevant keys.
constexpr const char* kDialect4 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 128256})";
constexpr const char* kDialect5 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "dtype": "bfloat16", "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 16, "num_key_value_heads": 8, "pad_token_id": null, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_parameters": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                      "original_max_position_embeddings": 8192, "rope_theta": 500000.0, "rope_type": "llama3"},
  "tie_word_embeddings": true, "transformers_version": "5.0.0", "use_cache": true, "vocab_size": 128256})";

LlamaConfig llama32_1b() {
  LlamaConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_layers = 16;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 64;
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  config.rope = {RopeKind::kLlama3, 500000.0, 32.0, 1.0, 4.0, 8192};
  config.bos_token_id = 128000;
  config.eos_token_ids = {128001, 128008, 128009};
  return config;
}

/// The text of a tiny configuration, merged with `changes`.
std::string with(const char* changes) {
  Json config =
      Json::parse(R"({"model_type":"llama","vocab_size":100,"hidden_size":48,"intermediate_size":96,
    "num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":2})");
  config.merge_patch(Json::parse(changes));
  return config.dump();
}

LlamaConfig parse(const std::string& text) { return parse_llama_config(text, "config.json"); }

TEST(LlamaConfig, ReadsBothDialects) {
  EXPECT_EQ(parse(kDialect4), llama32_1b());
  EXPECT_EQ(parse(kDialect5), llama32_1b());
}

TEST(LlamaConfig, FormattedTextRoundTrips) {
  LlamaConfig config = llama32_1b();
  EXPECT_EQ(parse(format_llama_config(config)), config);
  config.rope = {};
  config.rope.kind = RopeKind::kLinear;
  config.rope.factor = 2.5;
  config.attention_bias = config.mlp_bias = true;
  config.pad_token_id = 0;
  config.bos_token_id.reset();
  config.eos_token_ids = {};
  config.torch_dtype = "float32";
  EXPECT_EQ(parse(format_llama_config(config)), config);
  config.mlp_bias = false;
  config.initializer_range = 0.05;
  EXPECT_EQ(parse(format_llama_config(config)), config);
}

TEST(LlamaConfig, WritesKeysThatBothTransformersVersionsRead) {
  const Json json = Json::parse(format_llama_config(llama32_1b()));
  EXPECT_EQ(json["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["hidden_act"], "silu");
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  EXPECT_EQ(json["rope_scaling"]["rope_type"], "llama3");
  EXPECT_EQ(json["rope_theta"], 500000.0);
  EXPECT_FALSE(json.contains("rope_parameters"));
}

// Manifests hash the text: other bytes would be another model.
TEST(LlamaConfig, TheWrittenTextIsStable) {
  EXPECT_EQ(format_llama_config(llama32_1b()), R"({
  "architectures": [
    "LlamaForCausalLM"
  ],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 128000,
  "eos_token_id": [
    128001,
    128008,
    128009
  ],
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "initializer_range": 0.02,
  "intermediate_size": 8192,
  "max_position_embeddings": 131072,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 16,
  "num_key_value_heads": 8,
  "pad_token_id": null,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "use_cache": true,
  "vocab_size": 128256
}
)");
}

TEST(ModelFamilies, ARowNamesItsArchitecturesAndItsLayers) {
  for (const ModelFamily& family : model_families()) {
    EXPECT_EQ(find_model_family(family.model_type), &family);
    ASSERT_FALSE(family.architectures.empty()) << family.model_type;
    LlamaConfig config = llama32_1b();
    config.model_type = family.model_type;
    EXPECT_EQ(parse(format_llama_config(config)), config);
    EXPECT_FALSE(family.linear_layers(config).empty()) << family.model_type;
  }
  EXPECT_EQ(find_model_family("gpt2"), nullptr);
  LlamaConfig unknown;
  unknown.model_type = "gpt2";
  EXPECT_EQ(thrown_by([&] { unknown.family(); }).kind, ErrorKind::kUnsupported);
}

TEST(ModelFamilies, AFamilyHasItsDefaults) {
  const LlamaConfig mistral = parse(R"({"model_type":"mistral"})");
  EXPECT_EQ(mistral.intermediate_size, 14336);
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  EXPECT_EQ(mistral.sliding_window, 4096);
  EXPECT_EQ(mistral.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(mistral.num_parameters(), 7'241'732'096);  // of Mistral-7B
  const LlamaConfig qwen = parse(R"({"model_type":"qwen2"})");
  EXPECT_EQ(qwen.vocab_size, 151936);
  EXPECT_EQ(qwen.intermediate_size, 22016);
  EXPECT_EQ(qwen.num_kv_heads, 32);
  EXPECT_EQ(qwen.max_position_embeddings, 32768);
  EXPECT_EQ(qwen.bos_token_id, std::nullopt);
  EXPECT_TRUE(qwen.eos_token_ids.empty());
  EXPECT_THAT(
      thrown_by([] { parse(R"({"model_type":"mistral","num_attention_heads":4})"); }).message,
      HasSubstr("'num_key_value_heads' (default 8) should be at most num_attention_heads 4"));
  EXPECT_EQ(parse(R"({"model_type":"mistral","num_attention_heads":4,"num_key_value_heads":null})")
                .num_kv_heads,
            4);
}

// Qwen3-0.6B: 596,049,920 parameters, with norms of 128 for the heads of queries and keys.
TEST(ModelFamilies, NormsOfHeadsCountAsParameters) {
  const char* text = R"({"model_type":"qwen3","hidden_size":1024,"intermediate_size":3072,
    "num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":8,"tie_word_embeddings":true})";
  EXPECT_EQ(parse(text).head_dim, 128);
  EXPECT_EQ(parse(text).num_parameters(), 596'049'920);
  EXPECT_TRUE(parse(with(R"({"model_type":"qwen3","attention_bias":true})")).attention_bias);
}

TEST(ModelFamilies, AFamilyReadsAndWritesItsOwnKeys) {
  LlamaConfig config = llama32_1b();
  config.model_type = "mistral";
  for (const std::optional<int64_t> window :
       {std::optional<int64_t>(32), std::optional<int64_t>()}) {
    config.sliding_window = window;
    const std::string text = format_llama_config(config);
    EXPECT_EQ(parse(text), config);
    EXPECT_TRUE(Json::parse(text).contains("sliding_window"));
    EXPECT_FALSE(Json::parse(text).contains("attention_bias"));
  }
  EXPECT_FALSE(parse(with(R"({"model_type":"mistral","attention_bias":true})")).attention_bias);
  EXPECT_EQ(parse(with(R"({"sliding_window":8})")).sliding_window, std::nullopt);
  EXPECT_THAT(
      thrown_by([] { parse(with(R"({"model_type":"mistral","sliding_window":0})")); }).message,
      HasSubstr("'sliding_window'"));
}

// Qwen2.5-0.5B: 494,032,768 parameters, a bias for each of q, k and v.
TEST(ModelFamilies, BiasesOfQkvOnlyCountAsParameters) {
  const LlamaConfig config =
      parse(R"({"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,
    "num_hidden_layers":24,"num_attention_heads":14,"num_key_value_heads":2,"tie_word_embeddings":true})");
  EXPECT_EQ(config.num_parameters(), 494'032'768);
}

TEST(LlamaConfig, AbsentKeysGetHuggingFaceDefaults) {
  const LlamaConfig config = parse(R"({"model_type":"llama"})");
  LlamaConfig expected;  // Llama-2 7B with transformers' default token ids and dtype
  expected.bos_token_id = 1;
  expected.eos_token_ids = {2};
  expected.torch_dtype = "float32";
  EXPECT_EQ(config, expected);
  EXPECT_EQ(parse(with(R"({"num_key_value_heads":null})")).num_kv_heads, 6);
  EXPECT_EQ(parse(with("{}")).head_dim, 8);
  EXPECT_EQ(parse(with(R"({"head_dim":10})")).head_dim, 10);
}

TEST(LlamaConfig, ReadsOneIdAListOrNoTokenIds) {
  EXPECT_EQ(parse(with(R"({"eos_token_id":7})")).eos_token_ids, std::vector<int64_t>{7});
  EXPECT_EQ(parse(R"({"model_type":"llama","bos_token_id":null,"eos_token_id":null})").bos_token_id,
            std::nullopt);
  EXPECT_EQ(parse(with(R"({"pad_token_id":-1})")).pad_token_id, std::nullopt);
  EXPECT_EQ(parse(with(R"({"pad_token_id":0})")).pad_token_id, 0);
}

TEST(LlamaConfig, ReadsTheOldSpellingOfRopeScaling) {
  const Rope rope =
      parse(with(R"({"rope_theta":1e6,"rope_scaling":{"type":"linear","factor":4.0}})")).rope;
  EXPECT_EQ(rope.kind, RopeKind::kLinear);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.theta, 1e6);
  EXPECT_EQ(
      parse(with(R"({"rope_parameters":{"rope_type":"default","rope_theta":2e4}})")).rope.theta,
      2e4);
}

// Other factors than those of Llama 3, which are the defaults of Rope.
TEST(LlamaConfig, ReadsAndWritesEachFactorOfLlama3) {
  const LlamaConfig config = parse(with(R"({"rope_scaling":{"rope_type":"llama3","factor":4.0,
      "low_freq_factor":2.0,"high_freq_factor":8.0,"original_max_position_embeddings":64}})"));
  EXPECT_EQ(config.rope, (Rope{RopeKind::kLlama3, 10000.0, 4.0, 2.0, 8.0, 64}));
  EXPECT_EQ(parse(format_llama_config(config)), config);
}

// As in transformers 5.
TEST(LlamaConfig, RopeScalingTakesPrecedenceOverRopeParameters) {
  const LlamaConfig config = parse(with(R"({"rope_scaling":{"rope_type":"linear","factor":4.0},
      "rope_parameters":{"rope_type":"linear","factor":2.0}})"));
  EXPECT_EQ(config.rope.factor, 4.0);
}

TEST(LlamaConfig, ReadsAndWritesYarn) {
  LlamaConfig config = parse(
      with(R"({"max_position_embeddings":512,"rope_scaling":{"rope_type":"yarn","factor":4.0}})"));
  EXPECT_EQ(config.rope.kind, RopeKind::kYarn);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 512);
  EXPECT_DOUBLE_EQ(config.rope.attention_factor, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(parse(format_llama_config(config)), config);
  config = parse(
      with(R"({"rope_scaling":{"type":"yarn","factor":4.0,"mscale":1.0,"beta_fast":16,"beta_slow":2,
      "mscale_all_dim":0.5,"truncate":false,"original_max_position_embeddings":64}})"));
  EXPECT_EQ(config.rope.beta_fast, 16);
  EXPECT_EQ(config.rope.beta_slow, 2);
  EXPECT_FALSE(config.rope.truncate);
  EXPECT_DOUBLE_EQ(config.rope.attention_factor,
                   (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  EXPECT_EQ(parse(format_llama_config(config)), config);
  const Rope rope = parse(with(R"({"rope_scaling":{"type":"yarn","factor":4.0,"mscale":2.0,
      "beta_fast":0,"beta_slow":0}})"))
                        .rope;
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.1 * std::log(4.0) + 1)
      << "mscale has no effect without mscale_all_dim";
  EXPECT_EQ(rope.beta_fast, Rope{}.beta_fast) << "0 counts as absent";
  EXPECT_EQ(rope.beta_slow, Rope{}.beta_slow);
  config.rope = {RopeKind::kDynamic, 10000.0, 2.0};
  EXPECT_EQ(parse(format_llama_config(config)), config);
}

TEST(LlamaConfig, RejectsUnsupportedSettings) {
  const auto message = [](const char* changes) {
    const Thrown thrown = thrown_by([&] { parse(with(changes)); });
    EXPECT_EQ(thrown.kind, ErrorKind::kUnsupported) << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr("config.json"));
    return thrown.message;
  };
  EXPECT_THAT(message(R"({"model_type":"gpt2"})"),
              HasSubstr("'model_type' is gpt2; this build supports llama, mistral, qwen2, qwen3"));
  for (const std::string family : {"qwen2", "qwen3"}) {
    const std::string begin = R"({"model_type":")" + family + "\",";
    EXPECT_THAT(message((begin + R"("use_sliding_window":true})").c_str()),
                HasSubstr("'use_sliding_window' is true; this build supports false"));
    EXPECT_THAT(
        message((begin + R"("layer_types":["full_attention","sliding_attention"]})").c_str()),
        HasSubstr("'layer_types' is sliding_attention"));
  }
  EXPECT_THAT(message(R"({"architectures":["LlamaForSequenceClassification"]})"),
              HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(message(R"({"hidden_act":"gelu"})"), HasSubstr("'hidden_act' is gelu"));
  EXPECT_THAT(message(R"({"attention_dropout":0.1})"), HasSubstr("'attention_dropout' is 0.1"));
  EXPECT_THAT(message(R"({"pretraining_tp":2})"), HasSubstr("pretraining_tp"));
  EXPECT_THAT(message(R"({"partial_rotary_factor":0.5})"), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(message(R"({"quantization_config":{"bits":4}})"), HasSubstr("quantization_config"));
  EXPECT_THAT(message(R"({"rope_scaling":{"rope_type":"longrope","factor":2.0}})"),
              HasSubstr("'rope_type' is longrope; this build supports default, linear, dynamic"));
  EXPECT_THAT(message(R"({"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5}})"),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(message(R"({"torch_dtype":"float64"})"), HasSubstr("float64"));
  for (const ModelFamily& family : model_families())
    for (const auto& [key, value] : {std::pair("hidden_act", Json("gelu")),
                                     {"attention_dropout", 0.1},
                                     {"partial_rotary_factor", 0.5}}) {
      const Json changes{{"model_type", std::string(family.model_type)}, {key, value}};
      EXPECT_THAT(message(changes.dump().c_str()), HasSubstr(key)) << family.model_type;
    }
}

TEST(LlamaConfig, RejectsValuesOutOfRange) {
  const auto message = [](const char* changes) {
    const Thrown thrown = thrown_by([&] { parse(with(changes)); });
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << changes;
    return thrown.message;
  };
  EXPECT_THAT(message(R"({"vocab_size":0})"), HasSubstr("'vocab_size'"));
  EXPECT_THAT(message(R"({"vocab_size":16777217})"), HasSubstr("'vocab_size'"));
  EXPECT_THAT(message(R"({"vocab_size":"100"})"), HasSubstr("'vocab_size'"));
  EXPECT_THAT(message(R"({"hidden_size":-48})"), HasSubstr("'hidden_size'"));
  EXPECT_THAT(message(R"({"num_hidden_layers":10001})"), HasSubstr("'num_hidden_layers'"));
  EXPECT_THAT(message(R"({"num_key_value_heads":4})"),
              HasSubstr("should divide num_attention_heads 6, found 4"));
  EXPECT_THAT(message(R"({"num_key_value_heads":12})"), HasSubstr("'num_key_value_heads'"));
  EXPECT_THAT(message(R"({"head_dim":7})"), HasSubstr("should be even, found 7"));
  EXPECT_THAT(message(R"({"hidden_size":4})"), HasSubstr("'head_dim'"));
  EXPECT_THAT(message(R"({"rms_norm_eps":0})"), HasSubstr("'rms_norm_eps'"));
  EXPECT_THAT(message(R"({"rope_theta":-1})"), HasSubstr("'rope_theta'"));
  EXPECT_THAT(message(R"({"tie_word_embeddings":1})"), HasSubstr("'tie_word_embeddings'"));
  EXPECT_THAT(message(R"({"eos_token_id":-7})"), HasSubstr("'eos_token_id'"));
  EXPECT_THAT(message(R"({"bos_token_id":[1,2]})"), HasSubstr("'bos_token_id'"));
  EXPECT_THAT(message(R"({"rope_scaling":{"rope_type":"linear"}})"),
              HasSubstr("'factor' is missing"));
  EXPECT_THAT(message(R"({"rope_scaling":{"rope_type":"linear","factor":0.5}})"),
              HasSubstr("'factor'"));
  EXPECT_THAT(message(R"({"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":4.0,
      "high_freq_factor":4.0,"original_max_position_embeddings":64}})"),
              HasSubstr("'high_freq_factor'"));
  EXPECT_THAT(
      message(R"({"rope_scaling":{"rope_type":"yarn","factor":8.0,"beta_fast":1,"beta_slow":2}})"),
      HasSubstr("'beta_fast' should be at least beta_slow"));
  EXPECT_THAT(thrown_by([] { parse("{}"); }).message, HasSubstr("'model_type' is missing"));
}

TEST(LlamaConfig, ReadsConfigJsonOfAFolder) {
  test::TempDir dir;
  EXPECT_EQ(thrown_by([&] { read_llama_config(dir.path()); }).kind, ErrorKind::kNotFound);
  write_text(dir / "config.json", kDialect5);
  EXPECT_EQ(read_llama_config(dir.path()), llama32_1b());
}

TEST(LlamaConfig, TheEndOfTextIsThatOfGenerationConfigJson) {
  test::TempDir dir;
  const LlamaConfig config = llama32_1b();
  const auto ids_with = [&](const char* generation_config) {
    write_text(dir / "generation_config.json", generation_config);
    return end_of_text_ids(dir.path(), config);
  };
  EXPECT_EQ(end_of_text_ids(dir.path(), config), config.eos_token_ids) << "without the file";
  EXPECT_EQ(ids_with(R"({"temperature":0.6})"), config.eos_token_ids);
  EXPECT_EQ(ids_with(R"({"eos_token_id":null})"), config.eos_token_ids);
  EXPECT_EQ(ids_with(R"({"eos_token_id":7})"), std::vector<int64_t>{7});
  EXPECT_EQ(ids_with(R"({"eos_token_id":[9,128256]})"), std::vector<int64_t>{9})
      << "the vocabulary has ids below 128256";
}

TEST(LlamaConfig, CountsThePublishedNumberOfParameters) {
  EXPECT_EQ(llama32_1b().num_parameters(), 1'235'814'400);
  EXPECT_EQ(parse(R"({"model_type":"llama"})").num_parameters(), 6'738'415'616);
}

}  // namespace
}  // namespace xffl::checkpoint
