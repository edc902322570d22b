// Reference of each test: the same model in float64 on the CPU, which tests/llama compares with
// plain autograd, or the same run with another option. Tolerances are relative: of the loss 1e-5
// in float32 and 5e-3 in bfloat16, of a gradient's L2 norm 5e-5 and 5e-2. A CPU reaches 1e-7,
// 5e-4, 4e-6 and 2e-2.
#include <cmath>
#include <utility>

#include "llama/model_steps.h"
#include "trainer_gpu.h"
#include "xffl/checkpoint/lora.h"
#include "xffl/llama/model.h"
#include "xffl/llama/weight.h"

namespace xffl::trainer_gpu {
namespace {

using llama::Documents;
using llama::kIgnoreLabel;
using llama::Recompute;
using llama::Weight;

constexpr at::ScalarType kTrainedDtypes[] = {at::kFloat, at::kBFloat16};

double gradient_tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 5e-5 : 5e-2; }
double loss_tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-5 : 5e-3; }

struct Inputs {
  at::Tensor tokens_BT, labels_BT;  // on the CPU
  Documents documents{};
};

Inputs random_inputs(int64_t vocab_size, int64_t batch, int64_t positions) {
  Inputs inputs{at::randint(vocab_size, {batch, positions}, at::kLong),
                at::randint(vocab_size, {batch, positions}, at::kLong)};
  inputs.labels_BT[batch - 1].narrow(0, positions / 2, positions / 4).fill_(kIgnoreLabel);
  return inputs;
}

struct RunOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kDouble;
  at::ScalarType gradient_dtype = at::kDouble;
  llama::ModelOptions model{};
  size_t num_frozen = 0;  // the first parameters have no gradient
};

RunOptions on_device(at::ScalarType dtype) {
  RunOptions options;
  options.device = test_device();
  options.dtype = dtype;
  options.gradient_dtype = at::kFloat;
  return options;
}

struct Gradients {
  double nll_sum = 0;
  std::vector<at::Tensor> of_parameters;  // undefined where frozen
};

std::vector<Weight> make_weights(const std::vector<at::Tensor>& values, const RunOptions& options) {
  std::vector<Weight> weights(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    weights[i].value = values[i].to(options.device, options.dtype);
    if (i >= options.num_frozen)  // NaN must not survive
      weights[i].gradient = at::full(values[i].sizes(), NAN,
                                     at::dtype(options.gradient_dtype).device(options.device));
  }
  return weights;
}

Gradients run_backward(const checkpoint::LlamaConfig& config, const std::vector<at::Tensor>& values,
                       const std::vector<Inputs>& micro_batches, double scale,
                       const RunOptions& options) {
  const std::vector<Weight> weights = make_weights(values, options);
  llama::Model model(config, weights, options.model);
  llama::clear_gradients(model);
  Gradients result;
  for (const Inputs& inputs : micro_batches)
    result.nll_sum +=
        llama::accumulate_gradients(model, inputs.tokens_BT.to(options.device),
                                    inputs.labels_BT.to(options.device), scale, inputs.documents)
            .item<double>();
  llama::finish_gradients(model);
  for (const Weight& weight : weights) result.of_parameters.push_back(weight.gradient);
  return result;
}

void expect_near(const Gradients& found, const Gradients& expected, double loss_limit,
                 double gradient_limit, const std::string& what) {
  EXPECT_NEAR(found.nll_sum / expected.nll_sum, 1, loss_limit) << what;
  ASSERT_EQ(found.of_parameters.size(), expected.of_parameters.size());
  for (size_t i = 0; i < expected.of_parameters.size(); ++i) {
    if (!found.of_parameters[i].defined()) continue;
    EXPECT_LT(relative_error(found.of_parameters[i], expected.of_parameters[i]), gradient_limit)
        << what << ", parameter " << i;
  }
}

std::string name_of(at::ScalarType dtype) { return at::toString(dtype); }

// --- gradients of the embedding in bfloat16 ---

// The float32 sum rounded once: half a unit in the last of 8 bits, 2^-8, and float32's own error.
TEST_F(TrainerGpu, NarrowEmbeddingGradientIsTheSumRoundedOnce) {
  at::manual_seed(21);
  for (const auto& [num_rows, num_updates] : {std::pair{9, 5000}, {512, 700}, {64, 1}}) {
    const at::Tensor rows_N = at::randint(num_rows / 2 + 1, {num_updates}, at::kLong);
    const at::Tensor update_ND = at::randn({num_updates, 48}).to(at::kBFloat16);
    const at::Tensor given_VD = at::randn({num_rows, 48}).to(at::kBFloat16);
    const at::Tensor exact_VD =
        given_VD.to(at::kDouble).index_add(0, rows_N, update_ND.to(at::kDouble));
    const at::Tensor sizes_VD =
        given_VD.to(at::kDouble).abs().index_add(0, rows_N, update_ND.to(at::kDouble).abs());
    const at::Tensor limit_VD = exact_VD.abs() / 256 + sizes_VD * 1e-6;
    std::vector<at::Tensor> runs;
    for (int run = 0; run < 2; ++run) {
      const at::Tensor gradient = given_VD.to(test_device(), at::kBFloat16, false, true);
      llama::add_narrow_rows_at_once(gradient, rows_N.to(test_device()),
                                     update_ND.to(test_device()));
      runs.push_back(gradient.cpu());
    }
    const at::Tensor error_VD = (runs[0].to(at::kDouble) - exact_VD).abs();
    EXPECT_TRUE(error_VD.le(limit_VD).all().item<bool>()) << num_updates << " updates";
    EXPECT_TRUE(runs[0].equal(runs[1])) << "the second run added in another order";
    const at::Tensor untouched = runs[0].narrow(0, num_rows / 2 + 1, num_rows - num_rows / 2 - 1);
    EXPECT_TRUE(untouched.equal(given_VD.narrow(0, num_rows / 2 + 1, untouched.size(0))));
  }
}

TEST_F(TrainerGpu, NarrowEmbeddingGradientStartsFromZero) {
  at::manual_seed(22);
  const at::Tensor rows_N = at::randint(31, {900}, at::kLong);
  const at::Tensor update_ND = at::randn({900, 48}).to(at::kBFloat16);
  Weight weight;
  weight.gradient = at::full({40, 48}, NAN, at::dtype(at::kBFloat16).device(test_device()));
  weight.clear();
  weight.add_rows(rows_N.to(test_device()), update_ND.to(test_device()));
  const at::Tensor exact =
      at::zeros({40, 48}, at::kDouble).index_add(0, rows_N, update_ND.to(at::kDouble));
  EXPECT_LT(relative_error(weight.gradient, exact), 1.0 / 256);
}

TEST_F(TrainerGpu, NarrowEmbeddingGradientOfAModel) {
  for (const bool tied : {false, true}) {
    at::manual_seed(23);
    checkpoint::LlamaConfig config = two_layers();
    config.tie_word_embeddings = tied;
    const auto values = random_parameters(llama::parameter_specs(config), at::kBFloat16, 0.1);
    const std::vector<Inputs> inputs{random_inputs(config.vocab_size, 3, 100)};
    const Gradients want = run_backward(config, values, inputs, 1.0 / 275, {});
    RunOptions narrow = on_device(at::kBFloat16);
    narrow.gradient_dtype = at::kBFloat16;
    const Gradients found = run_backward(config, values, inputs, 1.0 / 275, narrow);
    expect_near(found, want, loss_tolerance(at::kBFloat16), gradient_tolerance(at::kBFloat16),
                tied ? "tied" : "not tied");
  }
}

// --- recompute ---

// Reference: recompute none, the same bits of loss and gradients.
TEST_F(TrainerGpu, RecomputeGivesTheSameBits) {
  const Deterministic deterministic;
  at::manual_seed(24);
  const checkpoint::LlamaConfig config = two_layers();
  for (const at::ScalarType dtype : kTrainedDtypes) {
    const auto values = random_parameters(llama::parameter_specs(config), dtype, 0.1);
    const std::vector<Inputs> inputs{random_inputs(config.vocab_size, 2, 200)};
    const Gradients want = run_backward(config, values, inputs, 0.01, on_device(dtype));
    for (const Recompute mode : {Recompute::kCheap, Recompute::kFull}) {
      RunOptions options = on_device(dtype);
      options.model.recompute = mode;
      const Gradients found = run_backward(config, values, inputs, 0.01, options);
      const std::string what = name_of(dtype) + (mode == Recompute::kCheap ? ", cheap" : ", full");
      EXPECT_EQ(found.nll_sum, want.nll_sum) << what;
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_TRUE(found.of_parameters[i].equal(want.of_parameters[i])) << what << " " << i;
    }
  }
}

// The default operators may add in another order in each run: compared with float64.
TEST_F(TrainerGpu, RecomputeWithDefaultOperatorsFollowsFloat64) {
  at::manual_seed(25);
  const checkpoint::LlamaConfig config = two_layers();
  for (const at::ScalarType dtype : kTrainedDtypes) {
    const auto values = random_parameters(llama::parameter_specs(config), dtype, 0.1);
    const std::vector<Inputs> inputs{random_inputs(config.vocab_size, 2, 200)};
    const Gradients want = run_backward(config, values, inputs, 0.01, {});
    for (const Recompute mode : {Recompute::kNone, Recompute::kCheap, Recompute::kFull}) {
      RunOptions options = on_device(dtype);
      options.model.recompute = mode;
      expect_near(run_backward(config, values, inputs, 0.01, options), want, loss_tolerance(dtype),
                  gradient_tolerance(dtype),
                  name_of(dtype) + ", recompute " + std::to_string(static_cast<int>(mode)));
    }
  }
}

// --- document mask ---

struct Packed {
  Inputs together;
  std::vector<Inputs> apart;  // each document a micro-batch of its own
};

// Two sequences with `num_documents` documents of random lengths each; the last token of a document
// has no target.
Packed pack_documents(int64_t vocab_size, int64_t positions, int64_t num_documents) {
  Packed packed{{at::randint(vocab_size, {2, positions}, at::kLong),
                 at::randint(vocab_size, {2, positions}, at::kLong),
                 {at::zeros({2, positions}, at::kLong)}},
                {}};
  Inputs& all = packed.together;
  for (int64_t b = 0; b < 2; ++b) {
    const at::Tensor cuts =
        std::get<0>((at::randperm(positions - 1).narrow(0, 0, num_documents - 1) + 1).sort());
    int64_t start = 0;
    for (int64_t i = 0; i < num_documents; ++i) {
      const int64_t end = i + 1 < num_documents ? cuts[i].item<int64_t>() : positions;
      all.documents.starts_BT[b].narrow(0, start, end - start).fill_(start);
      all.labels_BT[b][end - 1] = kIgnoreLabel;
      const auto part = [&](const at::Tensor& x_BT) {
        return x_BT.narrow(0, b, 1).narrow(1, start, end - start).clone();
      };
      packed.apart.push_back({part(all.tokens_BT), part(all.labels_BT)});
      start = end;
    }
  }
  return packed;
}

void expect_documents_stay_apart(int64_t positions, int64_t num_documents) {
  const AttentionOfAnyLength attention;
  at::manual_seed(26);
  const checkpoint::LlamaConfig config = two_layers();
  const double scale = 0.5 / static_cast<double>(positions);
  const Packed packed = pack_documents(config.vocab_size, positions, num_documents);
  const std::string shape =
      std::to_string(num_documents) + " documents of " + std::to_string(positions) + " positions, ";
  for (const at::ScalarType dtype : kTrainedDtypes) {
    const auto values = random_parameters(llama::parameter_specs(config), dtype, 0.12);
    const Gradients want = run_backward(config, values, packed.apart, scale, {});
    const Gradients found =
        run_backward(config, values, {packed.together}, scale, on_device(dtype));
    expect_near(found, want, loss_tolerance(dtype), gradient_tolerance(dtype),
                shape + name_of(dtype));
    if (num_documents == 1) continue;
    Inputs unmasked = packed.together;
    unmasked.documents = {};
    const Gradients mixed = run_backward(config, values, {unmasked}, scale, on_device(dtype));
    EXPECT_GT(relative_error(mixed.of_parameters[1], want.of_parameters[1]),
              4 * gradient_tolerance(dtype))
        << shape << "the mask should matter to the first query weights";
  }
}

TEST_F(TrainerGpu, DocumentMaskOf1Document) { expect_documents_stay_apart(256, 1); }
TEST_F(TrainerGpu, DocumentMaskOf15Documents) { expect_documents_stay_apart(512, 15); }
TEST_F(TrainerGpu, DocumentMaskOf60Documents) { expect_documents_stay_apart(1024, 60); }

// 64 positions beyond a multiple of the 128 rows of an attention tile.
TEST_F(TrainerGpu, DocumentMaskOfAHalfFilledTile) {
  for (const int64_t num_documents : {1, 15, 60}) expect_documents_stay_apart(320, num_documents);
}

// The same positions without documents, with the default attention backend.
TEST_F(TrainerGpu, DocumentMaskAbsentInAHalfFilledTile) {
  at::manual_seed(27);
  const checkpoint::LlamaConfig config = two_layers();
  for (const int64_t positions : {64, 192, 320}) {
    for (const at::ScalarType dtype : kTrainedDtypes) {
      const auto values = random_parameters(llama::parameter_specs(config), dtype, 0.1);
      const std::vector<Inputs> inputs{random_inputs(config.vocab_size, 2, positions)};
      expect_near(run_backward(config, values, inputs, 0.01, on_device(dtype)),
                  run_backward(config, values, inputs, 0.01, {}), loss_tolerance(dtype),
                  gradient_tolerance(dtype), name_of(dtype) + ", " + std::to_string(positions));
    }
  }
}

// --- LoRA ---

// Index of each weight that the adapter targets, in the order of the adapter's pairs.
std::vector<size_t> target_weights(const std::vector<llama::ParameterSpec>& specs,
                                   const std::vector<llama::ParameterSpec>& adapter) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < adapter.size(); i += 2) {
    const std::string prefix = "base_model.model.", suffix = ".lora_A.weight";
    const std::string name = adapter[i].name.substr(
        prefix.size(), adapter[i].name.size() - prefix.size() - suffix.size());
    for (size_t w = 0; w < specs.size(); ++w)
      if (specs[w].name == name + ".weight") indices.push_back(w);
  }
  return indices;
}

// Reference: the model of W + s B A in float64, whose gradient dW gives dA = s B^T dW and
// dB = s dW A^T.
TEST_F(TrainerGpu, LoraFollowsTheMergedModel) {
  const checkpoint::LlamaConfig config = two_layers();
  const checkpoint::LoraConfig lora = checkpoint::checked_lora_config(
      {4, 6, 0, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
      "lora");
  const auto specs = llama::parameter_specs(config);
  const auto adapter_specs = llama::adapter_specs(config, lora);
  const std::vector<size_t> targets = target_weights(specs, adapter_specs);
  ASSERT_EQ(targets.size() * 2, adapter_specs.size());
  for (const at::ScalarType dtype : kTrainedDtypes) {
    at::manual_seed(28);
    const auto values = random_parameters(specs, dtype, 0.1);
    const auto adapter = random_parameters(adapter_specs, dtype, 0.2);
    std::vector<at::Tensor> merged = values, together = values;
    for (size_t i = 0; i < targets.size(); ++i)
      merged[targets[i]] =
          values[targets[i]] + at::mm(adapter[2 * i + 1], adapter[2 * i]) * lora.scaling();
    together.insert(together.end(), adapter.begin(), adapter.end());
    const std::vector<Inputs> inputs{random_inputs(config.vocab_size, 2, 150)};
    const Gradients want = run_backward(config, merged, inputs, 1.0 / 263, {});
    RunOptions options = on_device(dtype);
    options.model.lora = lora;
    options.num_frozen = values.size();
    const Gradients found = run_backward(config, together, inputs, 1.0 / 263, options);
    EXPECT_NEAR(found.nll_sum / want.nll_sum, 1, loss_tolerance(dtype)) << dtype;
    for (size_t i = 0; i < targets.size(); ++i) {
      const at::Tensor& grad_w = want.of_parameters[targets[i]];
      const size_t a = values.size() + 2 * i, b = a + 1;
      const at::Tensor grad_a = at::mm(adapter[2 * i + 1].t(), grad_w) * lora.scaling();
      const at::Tensor grad_b = at::mm(grad_w, adapter[2 * i].t()) * lora.scaling();
      EXPECT_LT(relative_error(found.of_parameters[a], grad_a), gradient_tolerance(dtype))
          << dtype << " " << adapter_specs[2 * i].name;
      EXPECT_LT(relative_error(found.of_parameters[b], grad_b), gradient_tolerance(dtype))
          << dtype << " " << adapter_specs[2 * i + 1].name;
    }
  }
}

// --- micro-batches ---

// Reference: one large batch in float64.
TEST_F(TrainerGpu, MicroBatchesAddUpToOneBatch) {
  at::manual_seed(29);
  const checkpoint::LlamaConfig config = two_layers();
  for (const at::ScalarType dtype : kTrainedDtypes) {
    const auto values = random_parameters(llama::parameter_specs(config), dtype, 0.1);
    const Inputs all = random_inputs(config.vocab_size, 8, 70);
    std::vector<Inputs> parts;
    for (int64_t b = 0; b < 8; b += 2)
      parts.push_back({all.tokens_BT.narrow(0, b, 2), all.labels_BT.narrow(0, b, 2)});
    const Gradients want = run_backward(config, values, {all}, 0.002, {});
    for (const Recompute mode : {Recompute::kNone, Recompute::kFull}) {
      RunOptions options = on_device(dtype);
      options.model.recompute = mode;
      expect_near(run_backward(config, values, parts, 0.002, options), want, loss_tolerance(dtype),
                  gradient_tolerance(dtype), name_of(dtype));
    }
  }
}

// --- long sequences ---

// Reference: float64 on the same device, with ATen's plain attention. One layer; the head size is
// 128 on a GPU, as in the 8B model, and 16 on a CPU to save time.
TEST_F(TrainerGpu, LongSequenceOf8192Positions) {
  checkpoint::LlamaConfig config = two_layers();
  config.num_layers = 1;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = test_device().is_cuda() ? 128 : 16;
  config.max_position_embeddings = 8192;
  for (const at::ScalarType dtype : kTrainedDtypes) {
    at::manual_seed(30);
    const auto values = random_parameters(llama::parameter_specs(config), dtype, 0.2);
    const std::vector<Inputs> inputs{random_inputs(config.vocab_size, 1, 8192)};
    RunOptions exact;
    exact.device = test_device();
    expect_near(run_backward(config, values, inputs, 1e-4, on_device(dtype)),
                run_backward(config, values, inputs, 1e-4, exact), loss_tolerance(dtype),
                gradient_tolerance(dtype), name_of(dtype));
  }
}

}  // namespace
}  // namespace xffl::trainer_gpu
