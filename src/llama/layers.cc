// How it works: parameters are not autograd variables. Each function saves the activations that it
// needs. Its backward adds the gradients of its parameters to the flat buffer by an accumulating
// product.
#include "layers.h"

#include <torch/autograd.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "pointwise.h"
#include "product.h"
#include "xffl/base/random.h"

namespace xffl::llama {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Carries a C++ value through an autograd context.
template <class T>
struct Holder : torch::CustomClassHolder {
  explicit Holder(T v) : value(std::move(v)) {}
  T value;
};

template <class T>
void store(AutogradContext* context, T value) {
  context->saved_data["held"] =
      c10::IValue::make_capsule(c10::make_intrusive<Holder<T>>(std::move(value)));
}

template <class T>
T& held(AutogradContext* context) {
  return static_cast<Holder<T>*>(context->saved_data["held"].toCapsule().get())->value;
}

constexpr int64_t kDirectionElements = 1 << 22;  // of W' at once, in the dtype of sums

// The state that backward needs beside x.
struct LoraTape {
  at::Tensor h_BTR{};              // dropout(x) A^T
  std::optional<uint64_t> seed{};  // the mask's seed
  // With magnitudes:
  at::Tensor z_BTE{};      // dropout(x) W'^T
  at::Tensor lengths_E{};  // |W'|
  at::Tensor factors_E{};  // magnitude / |W'|
};

std::optional<uint64_t> seed_of(const Lora& lora) {
  if (lora.dropout == nullptr || !lora.dropout->seed) return std::nullopt;
  return *lora.dropout->seed + (lora.layer + 1) * kSplitMix64Step;
}

// Elements 0 or 1 / (1 - p), from the device's default generator; every draw seeds the generator
// first.
at::Tensor mask_like(const at::Tensor& x, double probability, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(x.device());
  {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
  return at::empty(x.sizes(), x.options())
      .bernoulli_(1 - probability, generator)
      .div_(1 - probability);
}

at::Tensor dropped(const at::Tensor& x_BTD, const Lora& lora, std::optional<uint64_t> seed) {
  return seed ? mask_like(x_BTD, lora.dropout->probability, *seed).mul_(x_BTD) : x_BTD;
}

// y += scaling x' A^T B^T, with x' = dropout(x).
void add_lora(at::Tensor y_BTE, const at::Tensor& dropped_BTD, const Lora& lora, LoraTape& tape) {
  tape.h_BTR = multiply_linear(dropped_BTD, lora.a->value, {});
  y_BTE.add_(multiply_linear(tape.h_BTR, lora.b->value, {}), lora.scaling);
}

// The lengths of the rows of W', in the dtype of sums, and infinity for a row of zeros. W' exists
// in pieces of rows only.
at::Tensor row_lengths(const at::Tensor& w_ED, const Lora& lora) {
  const at::ScalarType wide = accumulation_type(w_ED.scalar_type());
  const at::Tensor a_RD = lora.a->value.to(wide);
  at::Tensor lengths_E = at::empty({w_ED.size(0)}, w_ED.options().dtype(wide));
  const int64_t rows = std::max<int64_t>(1, kDirectionElements / w_ED.size(1));
  for (int64_t begin = 0; begin < w_ED.size(0); begin += rows) {
    const int64_t count = std::min(rows, w_ED.size(0) - begin);
    const at::Tensor piece_ED =
        at::addmm(w_ED.narrow(0, begin, count).to(wide),
                  lora.b->value.narrow(0, begin, count).to(wide), a_RD, 1, lora.scaling);
    lengths_E.narrow(0, begin, count).copy_(at::linalg_vector_norm(piece_ED, 2, {1}));
  }
  lengths_E = lengths_E.to(w_ED.scalar_type()).to(wide);
  return lengths_E.masked_fill_(lengths_E == 0, std::numeric_limits<double>::infinity());
}

at::Tensor kept_row_lengths(const at::Tensor& w_ED, const Lora& lora) {
  if (lora.kept == nullptr || !lora.kept->enabled) return row_lengths(w_ED, lora);
  at::Tensor& kept_E = lora.kept->lengths_E.at(lora.layer);
  if (!kept_E.defined()) kept_E = row_lengths(w_ED, lora);
  return kept_E;
}

// x * factors, rounded once to the dtype of x.
at::Tensor scaled(const at::Tensor& x_NE, const at::Tensor& factors_E) {
  at::Tensor product_NE = at::empty_like(x_NE);
  return at::mul_out(product_NE, x_NE, factors_E);
}

// W x + b with the adapter's change.
at::Tensor adapted(const at::Tensor& x_BTD, const Linear& linear,
                   const std::optional<at::Tensor>& bias, LoraTape& tape) {
  const Lora& lora = linear.lora;
  const at::Tensor& w_ED = linear.weight->value;
  tape.seed = seed_of(lora);
  const at::Tensor dropped_BTD = dropped(x_BTD, lora, tape.seed);
  if (lora.magnitude == nullptr) {
    at::Tensor y_BTE = multiply_linear(x_BTD, w_ED, bias);
    add_lora(y_BTE, dropped_BTD, lora, tape);
    return y_BTE;
  }
  tape.lengths_E = kept_row_lengths(w_ED, lora);
  tape.factors_E = lora.magnitude->value.to(tape.lengths_E.scalar_type()) / tape.lengths_E;
  tape.z_BTE = multiply_linear(dropped_BTD, w_ED, {});
  at::Tensor rest_BTE;
  if (tape.seed) rest_BTE = multiply_linear(x_BTD, w_ED, bias).sub_(tape.z_BTE);
  add_lora(tape.z_BTE, dropped_BTD, lora, tape);
  at::Tensor y_BTE = scaled(tape.z_BTE, tape.factors_E);
  if (tape.seed) return y_BTE.add_(rest_BTE);
  return bias ? y_BTE.add_(*bias) : y_BTE;
}

// Adds the gradient of the magnitudes to their weight.
void add_magnitude_gradient(const Lora& lora, const LoraTape& tape, const at::Tensor& grad_NE) {
  if (!lora.magnitude->is_trained()) return;
  const at::Tensor wide_NE = grad_NE.to(tape.lengths_E.scalar_type());
  lora.magnitude->add(at::mul(wide_NE, tape.z_BTE.flatten(0, -2)).sum(0).div_(tape.lengths_E));
}

// Adds the gradients of A and B to their weights, and the gradient of x to grad_x. `grad` is the
// gradient of scaling x' A^T B^T. With dropout x' may have a gradient of another source.
void add_lora_gradients(const Lora& lora, const LoraTape& tape, const at::Tensor& grad_NE,
                        const at::Tensor& x_ND, at::Tensor& grad_x_ND,
                        at::Tensor grad_dropped_ND = {}) {
  lora.b->add_product(grad_NE, tape.h_BTR.flatten(0, -2), lora.scaling);
  const at::Tensor grad_h_NR = llama::multiply(grad_NE, lora.b->value).mul_(lora.scaling);
  if (!tape.seed) {
    lora.a->add_product(grad_h_NR, x_ND);
    return add_multiplied(grad_x_ND, grad_h_NR, lora.a->value);
  }
  const at::Tensor mask_ND = mask_like(x_ND, lora.dropout->probability, *tape.seed);
  lora.a->add_product(grad_h_NR, mask_ND.mul(x_ND));
  const at::Tensor grad_here_ND = llama::multiply(grad_h_NR, lora.a->value);
  grad_dropped_ND = grad_dropped_ND.defined() ? grad_dropped_ND.add_(grad_here_ND) : grad_here_ND;
  grad_x_ND.add_(grad_dropped_ND.mul_(mask_ND));
}

// Adds the gradients of an adapted layer's weights, and the gradient of x to grad_x.
void add_adapted_gradients(const Linear& linear, const LoraTape& tape, const at::Tensor& grad_NE,
                           const at::Tensor& x_ND, at::Tensor& grad_x_ND) {
  const Lora& lora = linear.lora;
  const at::Tensor& w_ED = linear.weight->value;
  if (lora.magnitude == nullptr) {
    add_multiplied(grad_x_ND, grad_NE, w_ED);
    return add_lora_gradients(lora, tape, grad_NE, x_ND, grad_x_ND);
  }
  add_magnitude_gradient(lora, tape, grad_NE);
  const at::Tensor grad_z_NE = scaled(grad_NE, tape.factors_E);
  if (!tape.seed) {
    add_multiplied(grad_x_ND, grad_z_NE, w_ED);
    return add_lora_gradients(lora, tape, grad_z_NE, x_ND, grad_x_ND);
  }
  add_multiplied(grad_x_ND, grad_NE, w_ED);
  add_lora_gradients(lora, tape, grad_z_NE, x_ND, grad_x_ND,
                     llama::multiply(grad_z_NE - grad_NE, w_ED));
}

at::Tensor as_matrix(const at::Tensor& x_BTD) { return x_BTD.reshape({-1, x_BTD.size(-1)}); }

struct LinearsState {
  std::vector<Linear> linears;
  InputAgain again;
  std::vector<LoraTape> loras{};  // of the layers with an adapter
};

struct LinearsFunction : torch::autograd::Function<LinearsFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x_BTD,
                               LinearsState state) {
    if (!state.again) context->save_for_backward({x_BTD});
    variable_list results;
    for (const Linear& linear : state.linears) {
      std::optional<at::Tensor> bias;
      if (linear.bias != nullptr) bias = linear.bias->value;
      if (linear.lora.a == nullptr) {
        results.push_back(multiply_linear(x_BTD, linear.weight->value, bias));
      } else {
        state.loras.emplace_back();
        results.push_back(adapted(x_BTD, linear, bias, state.loras.back()));
      }
    }
    store(context, std::move(state));
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto& [linears, again, loras] = held<LinearsState>(context);
    const at::Tensor x_BTD = again ? again() : context->get_saved_variables()[0];
    const at::Tensor x_ND = as_matrix(x_BTD);
    at::Tensor grad_x_ND;
    size_t next_lora = 0;
    for (size_t i = 0; i < linears.size(); ++i) {
      const at::Tensor grad_NE = as_matrix(grads[i]);
      linears[i].weight->add_product(grad_NE, x_ND);
      if (linears[i].bias != nullptr && linears[i].bias->is_trained())
        linears[i].bias->add(grad_NE.sum(0, false, accumulation_type(x_ND.scalar_type())));
      if (linears[i].lora.a != nullptr) {
        add_adapted_gradients(linears[i], loras[next_lora++], grad_NE, x_ND, grad_x_ND);
      } else if (linears.size() == 1) {
        grad_x_ND = llama::multiply(grad_NE, linears[i].weight->value);
      } else {
        add_multiplied(grad_x_ND, grad_NE, linears[i].weight->value);
      }
    }
    grad_x_ND = grad_x_ND.to(x_BTD.scalar_type());
    return {grad_x_ND.view_as(x_BTD), {}};
  }
};

// Adds the weight's gradient and returns the gradient of the norm's input.
at::Tensor norm_backward(AutogradContext* context, const at::Tensor& grad_normed_BTD,
                         const at::Tensor& grad_sum_BTD) {
  const auto saved = context->get_saved_variables();
  Weight& weight = *held<Weight*>(context);
  const NormGradients gradients =
      rms_norm_backward(grad_normed_BTD, grad_sum_BTD, saved[0], saved[1], weight.value);
  weight.add(gradients.grad_w_D);
  return gradients.grad_x_BTD;
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_BTD, Weight* weight,
                            double epsilon) {
    const Normed normed = rms_norm_forward(x_BTD, {}, weight->value, epsilon);
    context->save_for_backward({x_BTD, normed.inverse_BT1});
    store(context, weight);
    return normed.normed_BTD;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {norm_backward(context, grads[0], {}), {}, {}};
  }
};

struct AddRmsNormFunction : torch::autograd::Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x_BTD,
                               const at::Tensor& delta_BTD, Weight* weight, double epsilon) {
    const Normed normed = rms_norm_forward(x_BTD, delta_BTD, weight->value, epsilon);
    context->save_for_backward({normed.sum_BTD, normed.inverse_BT1});
    store(context, weight);
    return {normed.sum_BTD, normed.normed_BTD};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor grad_x_BTD = norm_backward(context, grads[1], grads[0]);
    return {grad_x_BTD, grad_x_BTD, {}, {}};
  }
};

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_BTI,
                            const at::Tensor& up_BTI) {
    context->save_for_backward({gate_BTI, up_BTI});
    return swiglu_forward(gate_BTI, up_BTI);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    auto [grad_gate_BTI, grad_up_BTI] = swiglu_backward(grads[0], saved[0], saved[1]);
    return {std::move(grad_gate_BTI), std::move(grad_up_BTI)};
  }
};

}  // namespace

std::vector<at::Tensor> apply_linears(const at::Tensor& x_BTD, const std::vector<Linear>& linears,
                                      const InputAgain& again) {
  return LinearsFunction::apply(x_BTD, LinearsState{linears, again});
}

at::Tensor apply_linear(const at::Tensor& x_BTD, const Linear& linear, const InputAgain& again) {
  return apply_linears(x_BTD, {linear}, again)[0];
}

at::Tensor rms_norm(const at::Tensor& x_BTD, Weight& weight, double epsilon) {
  return RmsNormFunction::apply(x_BTD, &weight, epsilon);
}

at::Tensor heads_of(const at::Tensor& x_BTE, int64_t head_dim, Weight* norm, double epsilon) {
  const at::Tensor x_BTNH = x_BTE.view({x_BTE.size(0), x_BTE.size(1), -1, head_dim});
  return norm == nullptr ? x_BTNH : rms_norm(x_BTNH, *norm, epsilon);
}

SumAndNorm add_rms_norm(const at::Tensor& x_BTD, const at::Tensor& delta_BTD, Weight& weight,
                        double epsilon) {
  const variable_list results = AddRmsNormFunction::apply(x_BTD, delta_BTD, &weight, epsilon);
  return {results[0], results[1]};
}

at::Tensor swiglu(const at::Tensor& gate_BTI, const at::Tensor& up_BTI) {
  return SwigluFunction::apply(gate_BTI, up_BTI);
}

}  // namespace xffl::llama
