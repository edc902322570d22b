// Reference: the same architecture written plainly, with whole logits and an explicit mask, by
// float64 autograd. (The comparison with Hugging Face's own implementation is
// tests/train/hf_parity.py.)
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <map>

#include "model_steps.h"
#include "small_model.h"
#include "xffl/base/error.h"
#include "xffl/llama/decoder.h"

namespace xffl::llama {
namespace {

class PlainLlama {
 public:
  PlainLlama(checkpoint::LlamaConfig config, std::map<std::string, at::Tensor> p)
      : c_(config), p_(std::move(p)) {}

  at::Tensor nll_sum(const at::Tensor& tokens_BT, const at::Tensor& labels_BT) {
    at::Tensor x = at::embedding(p_["model.embed_tokens.weight"], tokens_BT);
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      x = x + attention(norm(x, prefix + "input_layernorm.weight"), prefix + "self_attn.");
      const at::Tensor h = norm(x, prefix + "post_attention_layernorm.weight");
      x = x +
          linear(at::silu(linear(h, prefix + "mlp.gate_proj")) * linear(h, prefix + "mlp.up_proj"),
                 prefix + "mlp.down_proj");
    }
    x = norm(x, "model.norm.weight");
    const at::Tensor head =
        p_[c_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"];
    return at::cross_entropy_loss(at::linear(x, head).flatten(0, 1), labels_BT.flatten(), {},
                                  at::Reduction::Sum, kIgnoreLabel);
  }

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    return p_[name] * (x * (x.pow(2).mean(-1, true) + c_.rms_norm_eps).rsqrt());
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) {
    const at::Tensor y = at::matmul(x, p_[name + ".weight"].t());
    return p_.contains(name + ".bias") ? y + p_[name + ".bias"] : y;
  }
  at::Tensor rotate(const at::Tensor& x) {
    const int64_t half = c_.head_dim / 2;
    const at::Tensor angles =
        at::outer(at::arange(x.size(1), at::kFloat), rope_frequencies(c_.rope, c_.head_dim))
            .repeat({1, 2})
            .to(at::kDouble);
    const auto rounded = [&](const at::Tensor& table) {
      return table.to(at::kFloat).mul(c_.rope.attention_factor).to(at::kDouble).unsqueeze(1);
    };
    const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
    return x * rounded(angles.cos()) + turned * rounded(angles.sin());
  }
  at::Tensor attention(const at::Tensor& x, const std::string& prefix) {
    const int64_t b = x.size(0), t = x.size(1), group = c_.num_heads / c_.num_kv_heads;
    const auto heads = [&](const std::string& name, int64_t n) {
      const at::Tensor y = linear(x, prefix + name + "_proj").view({b, t, n, c_.head_dim});
      const std::string head_norm = prefix + name + "_norm.weight";
      return p_.contains(head_norm) ? norm(y, head_norm) : y;
    };
    const at::Tensor q = rotate(heads("q", c_.num_heads)).transpose(1, 2);
    const at::Tensor k =
        rotate(heads("k", c_.num_kv_heads)).transpose(1, 2).repeat_interleave(group, 1);
    const at::Tensor v = heads("v", c_.num_kv_heads).transpose(1, 2).repeat_interleave(group, 1);
    const at::Tensor all = at::ones({t, t}, at::kBool);
    at::Tensor invisible = all.triu(1);
    if (c_.sliding_window) invisible = invisible.logical_or(all.tril(-*c_.sliding_window));
    const at::Tensor scores =
        at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(c_.head_dim));
    const at::Tensor p = at::softmax(scores.masked_fill(invisible, -INFINITY), 3);
    return linear(at::matmul(p, v).transpose(1, 2).reshape({b, t, -1}), prefix + "o_proj");
  }

  checkpoint::LlamaConfig c_;
  std::map<std::string, at::Tensor> p_;
};

struct Data {
  at::Tensor tokens_BT, labels_BT;
};

// Three sequences; the second is shorter, and its padding must not matter.
Data make_data(int64_t vocab_size) {
  at::manual_seed(11);
  const at::Tensor ids = at::randint(vocab_size, {3, 14}, at::kLong);
  Data data{ids.narrow(1, 0, 13).contiguous(), ids.narrow(1, 1, 13).contiguous()};
  data.labels_BT[1].narrow(0, 6, 7).fill_(kIgnoreLabel);
  return data;
}

void expect_model_equals_reference(const checkpoint::LlamaConfig& config) {
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  const std::vector<at::Tensor> values = random_values(specs);
  std::map<std::string, at::Tensor> plain;
  const std::vector<Weight> weights = weights_of(values, at::kDouble);
  for (size_t i = 0; i < specs.size(); ++i)
    plain[specs[i].name] = values[i].clone().requires_grad_(true);
  const Data data = make_data(config.vocab_size);
  const double scale = 0.25;
  const at::Tensor expected = PlainLlama(config, plain).nll_sum(data.tokens_BT, data.labels_BT);
  (expected * scale).backward();

  Model model(config, weights);
  clear_gradients(model);
  const at::Tensor found = accumulate_gradients(model, data.tokens_BT, data.labels_BT, scale);
  finish_gradients(model);
  EXPECT_NEAR(found.item<double>(), expected.item<double>(), 1e-8 * expected.item<double>());
  for (size_t i = 0; i < specs.size(); ++i) {
    const at::Tensor want = plain[specs[i].name].grad();
    const double error =
        (weights[i].gradient - want).norm().item<double>() / want.norm().item<double>();
    EXPECT_LT(error, 1e-9) << specs[i].name;
  }
  EXPECT_NEAR(nll(model, data.tokens_BT, data.labels_BT).sum().item<double>(),
              expected.item<double>(), 1e-6);
}

TEST(Model, GradientsEqualPlainAutograd) { expect_model_equals_reference(small_config()); }

TEST(Model, TiedEmbeddingsCollectBothGradients) {
  checkpoint::LlamaConfig config = small_config();
  config.tie_word_embeddings = true;
  expect_model_equals_reference(config);
}

// The hooks free the embedding after each use, as with full sharding.
TEST(Model, ValidationUsesATiedHeadBetweenItsHooks) {
  checkpoint::LlamaConfig config = small_config();
  config.tie_word_embeddings = true;
  Model model(config, weights_of(random_values(parameter_specs(config)), at::kDouble));
  const Data data = make_data(config.vocab_size);
  const at::Tensor expected = nll(model, data.tokens_BT, data.labels_BT);
  Weight& embedding = model.weights(0).front();
  const at::Tensor value = embedding.value;
  const auto set = [&](int unit, const at::Tensor& to) {
    if (unit == 0) embedding.value = to;
  };
  model.set_hooks(
      {[&](int unit, UnitUse) { set(unit, value); }, [&](int unit, UnitUse) { set(unit, {}); }});
  EXPECT_TRUE(nll(model, data.tokens_BT, data.labels_BT).equal(expected));
}

TEST(Model, BiasesHaveGradients) {
  checkpoint::LlamaConfig config = small_config();
  config.attention_bias = true;
  config.mlp_bias = true;
  config.num_kv_heads = config.num_heads;
  expect_model_equals_reference(config);
}

TEST(Model, FamiliesHaveTheirBiasesAndNorms) {
  for (const checkpoint::ModelFamily& family : checkpoint::model_families()) {
    SCOPED_TRACE(family.model_type);
    checkpoint::LlamaConfig config = small_config();
    config.model_type = family.model_type;
    expect_model_equals_reference(config);
  }
}

TEST(Model, ASlidingWindowHidesEarlierPositions) {
  checkpoint::LlamaConfig config = small_config();
  for (const int64_t window : {2, 4, 12, 13, 100}) {
    config.sliding_window = window;
    expect_model_equals_reference(config);
  }
}

TEST(Model, RopeVariantsHaveGradients) {
  checkpoint::LlamaConfig config = small_config();
  config.rope = {checkpoint::RopeKind::kLinear, 1000.0, 4.0, 1, 4, 8192};
  expect_model_equals_reference(config);
  config.rope = {checkpoint::RopeKind::kLlama3, 500000.0, 8.0, 1.0, 4.0, 64};
  expect_model_equals_reference(config);
  config.rope = {checkpoint::RopeKind::kYarn, 10000.0, 4.0, 1.0, 4.0, 64};
  config.rope.attention_factor = 1.2;
  expect_model_equals_reference(config);
}

TEST(Model, DynamicRopeEndsAtMaxPositionEmbeddings) {
  checkpoint::LlamaConfig config = small_config();
  config.rope = {checkpoint::RopeKind::kDynamic, 10000.0, 4.0};
  config.max_position_embeddings = 13;
  expect_model_equals_reference(config);
  config.max_position_embeddings = 12;
  try {
    expect_model_equals_reference(config);
    ADD_FAILURE() << "a sequence of 13 positions was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("13 positions, expected at most 12"),
              std::string::npos)
        << error.what();
  }
}

TEST(Model, PaddingChangesNothing) {
  const checkpoint::LlamaConfig config = small_config();
  const std::vector<at::Tensor> values = random_values(parameter_specs(config));
  std::vector<Weight> weights(values.size());
  for (size_t i = 0; i < values.size(); ++i) weights[i].value = values[i];
  Model model(config, weights);
  const Data data = make_data(config.vocab_size);
  const at::Tensor padded = nll(model, data.tokens_BT, data.labels_BT)[1].narrow(0, 0, 6);
  const at::Tensor alone = nll(model, data.tokens_BT.narrow(0, 1, 1).narrow(1, 0, 6),
                               data.labels_BT.narrow(0, 1, 1).narrow(1, 0, 6))[0];
  EXPECT_LT((padded - alone).abs().max().item<double>(), 1e-9);
}

// For every recomputation mode.
TEST(Model, RecomputingGivesTheSameBits) {
  const checkpoint::LlamaConfig config = small_config();
  const std::vector<at::Tensor> values = random_values(parameter_specs(config));
  const Data data = make_data(config.vocab_size);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<Weight> expected;
    double expected_loss = 0;
    for (const Recompute mode : {Recompute::kNone, Recompute::kCheap, Recompute::kFull}) {
      std::vector<Weight> weights = weights_of(values, dtype);
      ModelOptions options;
      options.recompute = mode;
      Model model(config, weights, options);
      clear_gradients(model);
      const double loss =
          accumulate_gradients(model, data.tokens_BT, data.labels_BT, 0.5).item<double>();
      finish_gradients(model);
      if (mode == Recompute::kNone) {
        expected = weights;
        expected_loss = loss;
      }
      EXPECT_EQ(loss, expected_loss);
      for (size_t i = 0; i < weights.size(); ++i)
        EXPECT_TRUE(weights[i].gradient.equal(expected[i].gradient)) << i;
    }
  }
}

// A decoder keeps the lengths of an adapter's rows, and the adapter may be trained afterwards.
TEST(Decoder, HasTheMagnitudesOfTheTrainedAdapter) {
  const checkpoint::LlamaConfig config = small_config();
  ModelOptions options;
  options.lora = checkpoint::LoraConfig{2, 4, 0, {"q_proj"}, false, /*weight_decomposed=*/true};
  std::vector<ParameterSpec> specs = parameter_specs(config);
  for (const ParameterSpec& spec : adapter_specs(config, *options.lora)) specs.push_back(spec);
  const std::vector<Weight> weights = weights_of(random_values(specs), at::kDouble);
  const auto logits_of = [](Model& model) { return Decoder(model, 3).feed({5, 1, 7}); };
  Model model(config, weights, options);
  const at::Tensor before = logits_of(model);
  const at::Tensor tokens_BT = at::tensor(std::vector<int64_t>{5, 1, 7}, at::kLong).unsqueeze(0);
  const at::Tensor& head_VD = weights[parameter_specs(config).size() - 2].value;
  const at::Tensor expected = at::mv(head_VD, model.hidden(tokens_BT)[0][2]);
  EXPECT_LT((before - expected).abs().max().item<double>(), 1e-5);
  for (Weight& weight : model.adapter_weights()) weight.value.mul_(2);
  Model fresh(config, weights, options);  // of the same memory
  const at::Tensor after = logits_of(fresh);
  EXPECT_FALSE(after.equal(before));
  EXPECT_TRUE(logits_of(model).equal(after));
}

// The prompt is longer than the window.
TEST(Decoder, APromptHasTheLogitsOfItsIdsOneByOne) {
  checkpoint::LlamaConfig config = small_config();
  config.sliding_window = 4;
  Model model(config, weights_of(random_values(parameter_specs(config)), at::kDouble));
  const std::vector<int64_t> ids{5, 1, 7, 30, 12, 0, 9, 21, 3};
  const at::Tensor at_once = Decoder(model, 9).feed(ids);
  Decoder decoder(model, 9);
  at::Tensor one_by_one;
  for (const int64_t id : ids) one_by_one = decoder.feed({id});
  EXPECT_LT((at_once - one_by_one).abs().max().item<double>(), 1e-5);
}

TEST(Rope, FrequenciesFollowTheirFormulas) {
  const at::Tensor plain = rope_frequencies({checkpoint::RopeKind::kDefault, 10000.0}, 8);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(plain[i].item<double>(), std::pow(10000.0, -2.0 * i / 8), 1e-7);
  const at::Tensor linear = rope_frequencies({checkpoint::RopeKind::kLinear, 10000.0, 4.0}, 8);
  EXPECT_TRUE(linear.equal(plain / 4));
  const checkpoint::Rope llama3{checkpoint::RopeKind::kLlama3, 10000.0, 8.0, 1.0, 4.0, 128};
  const at::Tensor stretched = rope_frequencies(llama3, 8);
  // Wavelengths 6.3, 63, 628, 6283 against 128 / 4 and 128 / 1: kept, between, stretched,
  // stretched.
  EXPECT_EQ(stretched[0].item<float>(), plain[0].item<float>());
  const double smooth = (128 / (2 * M_PI * 10) - 1) / 3;
  EXPECT_NEAR(stretched[1].item<double>(), (1 - smooth) * 0.1 / 8 + smooth * 0.1, 1e-7);
  EXPECT_FLOAT_EQ(stretched[2].item<float>(), plain[2].item<float>() / 8);
  EXPECT_FLOAT_EQ(stretched[3].item<float>(), plain[3].item<float>() / 8);
  checkpoint::Rope yarn{checkpoint::RopeKind::kYarn, 10000.0, 8.0, 1.0, 4.0, 128};
  // Pairs that turn 32 times and once in 128 positions: -0.2 and 1.3, so the ramp is 0 to 2.
  const at::Tensor mixed = rope_frequencies(yarn, 8);
  EXPECT_FLOAT_EQ(mixed[0].item<float>(), plain[0].item<float>());
  EXPECT_FLOAT_EQ(mixed[1].item<float>(), plain[1].item<float>() * (0.5F + 0.5F / 8));
  EXPECT_FLOAT_EQ(mixed[2].item<float>(), plain[2].item<float>() / 8);
  yarn.truncate = false;  // the ramp is 0 to 1.30903
  EXPECT_NEAR(rope_frequencies(yarn, 8)[1].item<double>(),
              0.1 * (1 - 1 / 1.30903) + 0.1 / 8 / 1.30903, 1e-6);
  // 2.8 and 4.3 in 131,072 positions: the ramp is 2 to 5, beyond the last pair.
  yarn.truncate = true;
  yarn.original_max_position_embeddings = 131'072;
  EXPECT_NEAR(rope_frequencies(yarn, 8)[3].item<double>(), 1e-3 * (2.0 / 3 + 1.0 / 3 / 8), 1e-8);
}

}  // namespace
}  // namespace xffl::llama
