// How it works: parameters are not autograd variables. Each function saves the activations that it
// needs. Its backward adds the gradients of its parameters to the flat buffer by an accumulating
// product.
#include "layers.h"

#include <torch/autograd.h>
#include <torch/custom_class.h>

#include "pointwise.h"
#include "product.h"

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
      results.push_back(multiply_linear(x_BTD, linear.weight->value, bias));
      if (linear.lora.a != nullptr)
        state.loras.push_back(add_lora(results.back(), x_BTD, linear.lora));
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
      if (linears.size() == 1 && linears[0].lora.a == nullptr) {
        grad_x_ND = llama::multiply(grad_NE, linears[i].weight->value);
      } else {
        add_multiplied(grad_x_ND, grad_NE, linears[i].weight->value);
      }
      if (linears[i].lora.a != nullptr)
        add_lora_gradients(linears[i].lora, loras[next_lora++], grad_NE, x_ND, grad_x_ND);
    }
    grad_x_ND = grad_x_ND.to(x_BTD.scalar_type());
    return {grad_x_ND.view_as(x_BTD), {}};
  }
};

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_BTD, Weight* weight,
                            double epsilon) {
    const Normed normed = rms_norm_forward(x_BTD, {}, weight->value, epsilon);
    context->save_for_backward({x_BTD, normed.inverse_BT1});
    store(context, weight);
    return normed.normed_BTD;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    Weight& weight = *held<Weight*>(context);
    const NormGradients gradients =
        rms_norm_backward(grads[0], {}, saved[0], saved[1], weight.value);
    weight.add(gradients.grad_w_D);
    return {gradients.grad_x_BTD, {}, {}};
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
    const auto saved = context->get_saved_variables();
    Weight& weight = *held<Weight*>(context);
    const NormGradients gradients =
        rms_norm_backward(grads[1], grads[0], saved[0], saved[1], weight.value);
    weight.add(gradients.grad_w_D);
    return {gradients.grad_x_BTD, gradients.grad_x_BTD, {}, {}};
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

SumAndNorm add_rms_norm(const at::Tensor& x_BTD, const at::Tensor& delta_BTD, Weight& weight,
                        double epsilon) {
  const variable_list results = AddRmsNormFunction::apply(x_BTD, delta_BTD, &weight, epsilon);
  return {results[0], results[1]};
}

at::Tensor swiglu(const at::Tensor& gate_BTI, const at::Tensor& up_BTI) {
  return SwigluFunction::apply(gate_BTI, up_BTI);
}

}  // namespace xffl::llama
