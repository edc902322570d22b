// Reference: the same functions in float64 on the CPU, which tests/llama compares with autograd and
// Hugging Face. On the GPU float32 and 16-bit tensors use the project's kernels.
#include "gpu_test.h"
#include "llama/model_steps.h"
#include "pointwise.h"
#include "xffl/llama/head_loss.h"
#include "xffl/llama/model.h"
#include "xffl/train/device.h"

namespace xffl::llama {
namespace {

class LlamaOnGpu : public GpuTest {};

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

at::Tensor exact(at::IntArrayRef shape, at::ScalarType dtype, int seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return at::randn(shape, at::kDouble).to(dtype).to(at::kDouble);
}

at::Tensor put(const at::Tensor& x, at::ScalarType dtype) { return x.to(kGpu, dtype); }

TEST_F(LlamaOnGpu, NormsEqualTheCpu) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = exact({2, 37, 200}, dtype, 1), d = exact({2, 37, 200}, dtype, 2);
    const at::Tensor w = exact({200}, dtype, 3), g = exact({2, 37, 200}, dtype, 4);
    const Normed want = rms_norm_forward(x, d, w, 1e-5);
    const Normed found = rms_norm_forward(put(x, dtype), put(d, dtype), put(w, dtype), 1e-5);
    EXPECT_LT(gpu_error(found.sum_BTD, want.sum_BTD), gpu_tolerance(dtype));
    EXPECT_LT(gpu_error(found.normed_BTD, want.normed_BTD), gpu_tolerance(dtype));
    const NormGradients want_back = rms_norm_backward(g, d, want.sum_BTD, want.inverse_BT1, w);
    const NormGradients back = rms_norm_backward(put(g, dtype), put(d, dtype), found.sum_BTD,
                                                 found.inverse_BT1, put(w, dtype));
    EXPECT_LT(gpu_error(back.grad_x_BTD, want_back.grad_x_BTD), gpu_tolerance(dtype));
    EXPECT_LT(gpu_error(back.grad_w_D, want_back.grad_w_D), gpu_tolerance(dtype));
  }
}

TEST_F(LlamaOnGpu, SwigluAndRopeEqualTheCpu) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor a = exact({3, 70, 90}, dtype, 1), b = exact({3, 70, 90}, dtype, 2);
    EXPECT_LT(gpu_error(swiglu_forward(put(a, dtype), put(b, dtype)), swiglu_forward(a, b)),
              gpu_tolerance(dtype));
    const auto want = swiglu_backward(a, a, b);
    const auto found = swiglu_backward(put(a, dtype), put(a, dtype), put(b, dtype));
    EXPECT_LT(gpu_error(found.first, want.first), gpu_tolerance(dtype));
    EXPECT_LT(gpu_error(found.second, want.second), gpu_tolerance(dtype));

    const RopeTable table = make_rope_table(rope_frequencies({}, 30), 70, at::dtype(dtype));
    const RopeTable wide{table.cos_TF.to(at::kDouble), table.sin_TF.to(at::kDouble)};
    const RopeTable there{table.cos_TF.to(kGpu), table.sin_TF.to(kGpu)};
    const at::Tensor x = a.view({3, 70, 3, 30});
    const at::Tensor gradient = put(x, dtype).transpose(1, 2).contiguous().transpose(1, 2);
    EXPECT_LT(gpu_error(rotate(put(x, dtype), there, 1), rotate(x, wide, 1)), gpu_tolerance(dtype));
    EXPECT_LT(gpu_error(rotate(gradient, there, -1), rotate(x, wide, -1)), gpu_tolerance(dtype));
    const RopeTable of_tokens{wide.cos_TF.repeat({3, 1}).flip(0),
                              wide.sin_TF.repeat({3, 1}).flip(0)};
    const RopeTable of_tokens_there{put(of_tokens.cos_TF, dtype), put(of_tokens.sin_TF, dtype)};
    EXPECT_LT(gpu_error(rotate(put(x, dtype), of_tokens_there, 1), rotate(x, of_tokens, 1)),
              gpu_tolerance(dtype));
  }
}

TEST_F(LlamaOnGpu, WeightGradientsAddUpInFloat32) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor a = exact({130, 40}, dtype, 1), b = exact({130, 72}, dtype, 2);
    Weight weight;
    weight.gradient = at::full({40, 72}, NAN, at::dtype(at::kFloat).device(kGpu));
    weight.add_product(put(a, dtype), put(b, dtype), 0.5);
    weight.add_product(put(a, dtype), put(b, dtype), 2);
    EXPECT_LT(gpu_error(weight.gradient, at::mm(a.t(), b) * 2.5), 1e-5) << dtype;
  }
}

TEST_F(LlamaOnGpu, EmbeddingGradientIsReproducible) {
  const at::Tensor rows = at::randint(9, {5000}, at::kLong),
                   update = exact({5000, 64}, at::kFloat, 1);
  std::vector<at::Tensor> found;
  for (int run = 0; run < 3; ++run) {
    Weight weight;
    weight.gradient = at::full({9, 64}, NAN, at::dtype(at::kFloat).device(kGpu));
    weight.add_rows(rows.to(kGpu), put(update, at::kFloat));
    found.push_back(weight.gradient.cpu());
  }
  EXPECT_LT(gpu_error(found[0], at::zeros({9, 64}, at::kDouble).index_add(0, rows, update)), 1e-5);
  EXPECT_TRUE(found[0].equal(found[1]) && found[0].equal(found[2]));
}

TEST_F(LlamaOnGpu, HeadLossEqualsTheCpu) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = exact({300, 48}, dtype, 1), w = exact({1000, 48}, dtype, 2) * 0.25;
    at::Tensor labels = at::randint(1000, {300}, at::kLong);
    labels.masked_fill_(at::rand({300}) < 0.3, kIgnoreLabel);
    Weight want_head, head;
    want_head.value = w;
    want_head.gradient = at::empty_like(w);
    head.value = put(w, dtype);
    head.gradient = at::full({1000, 48}, NAN, at::dtype(at::kFloat).device(kGpu));
    const HeadLoss want = head_loss(x, want_head, labels, 0.125);
    const HeadLoss found = head_loss(put(x, dtype), head, labels.to(kGpu), 0.125);
    const double limit = dtype == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_NEAR(found.nll_sum.item<double>() / want.nll_sum.item<double>(), 1, limit);
    EXPECT_LT(gpu_error(found.grad_x_ND, want.grad_x_ND), limit);
    EXPECT_LT(gpu_error(head.gradient, want_head.gradient), limit);
  }
}

checkpoint::LlamaConfig small_config() {
  checkpoint::LlamaConfig config;
  config.vocab_size = 131;
  config.hidden_size = 64;
  config.intermediate_size = 104;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.rms_norm_eps = 1e-5;
  return config;
}

struct Trained {
  double nll_sum = 0;
  std::vector<at::Tensor> gradients;
};

Trained gradients_of(const std::vector<at::Tensor>& values, at::Device device,
                     at::ScalarType dtype) {
  std::vector<Weight> weights(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    weights[i].value = values[i].to(device, dtype);
    weights[i].gradient = at::full_like(
        values[i], NAN, at::dtype(dtype == at::kDouble ? at::kDouble : at::kFloat).device(device));
  }
  Model model(small_config(), std::move(weights));
  at::manual_seed(5);
  const at::Tensor tokens = at::randint(131, {2, 130}, at::kLong);
  at::Tensor labels = at::randint(131, {2, 130}, at::kLong);
  labels[1].narrow(0, 100, 30).fill_(kIgnoreLabel);
  Trained result;
  const at::Tensor nll =
      accumulate_gradients(model, tokens.to(device), labels.to(device), 1.0 / 230);
  result.nll_sum = nll.item<double>();
  for (int unit = 0; unit < model.num_units(); ++unit)
    for (const Weight& weight : model.weights(unit)) result.gradients.push_back(weight.gradient);
  return result;
}

TEST_F(LlamaOnGpu, GradientsOfAWholeModelEqualTheCpu) {
  at::manual_seed(3);
  const std::vector<ParameterSpec> specs = parameter_specs(small_config());
  std::vector<at::Tensor> values;
  for (const ParameterSpec& spec : specs)
    values.push_back(at::randn(spec.shape, at::kDouble) * 0.1 + (spec.is_matrix() ? 0 : 1));
  const Trained want = gradients_of(values, at::kCPU, at::kDouble);
  for (const at::ScalarType dtype : kDtypes) {
    const Trained found = gradients_of(values, kGpu, dtype);
    const double limit = dtype == at::kFloat ? 2e-5 : 5e-2;
    EXPECT_NEAR(found.nll_sum / want.nll_sum, 1, limit);
    for (size_t i = 0; i < specs.size(); ++i)
      EXPECT_LT(gpu_error(found.gradients[i], want.gradients[i]), limit) << dtype << specs[i].name;
  }
}

// The last test of the suite: its setting holds for the whole process.
TEST_F(LlamaOnGpu, DeterministicModeIsReproducible) {
  train::use_deterministic_algorithms(kGpu);
  std::vector<at::Tensor> values;
  for (const ParameterSpec& spec : parameter_specs(small_config()))
    values.push_back(at::randn(spec.shape, at::kDouble) * 0.1 + (spec.is_matrix() ? 0 : 1));
  for (const at::ScalarType dtype : kDtypes) {
    const Trained first = gradients_of(values, kGpu, dtype);
    for (int run = 0; run < 4; ++run) {
      const Trained again = gradients_of(values, kGpu, dtype);
      EXPECT_EQ(again.nll_sum, first.nll_sum) << dtype;
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_TRUE(again.gradients[i].equal(first.gradients[i])) << dtype << " " << i;
    }
  }
}

}  // namespace
}  // namespace xffl::llama
