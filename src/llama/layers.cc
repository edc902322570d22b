// How it works: parameters are not autograd variables. Each function saves the activations that it
// needs and, in its backward, adds its parameters' gradients to their place in the flat buffer by a
// product that accumulates.
#include "layers.h"

#include <torch/autograd.h>
#include <torch/custom_class.h>

#include "product.h"

namespace xffl::llama {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Carries our own values through an autograd context.
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

// Norms are computed in float32, or in float64 for a float64 model (tests).
at::ScalarType accumulation_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

struct LinearsFunction : torch::autograd::Function<LinearsFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x_BTD,
                               std::vector<Linear> linears) {
    context->save_for_backward({x_BTD});
    variable_list results;
    for (const Linear& linear : linears) {
      std::optional<at::Tensor> bias;
      if (linear.bias != nullptr) bias = linear.bias->value;
      results.push_back(multiply_linear(x_BTD, linear.weight->value, bias));
    }
    store(context, std::move(linears));
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor x_BTD = context->get_saved_variables()[0];
    const at::Tensor x_ND = as_matrix(x_BTD);
    const auto& linears = held<std::vector<Linear>>(context);
    at::Tensor grad_x_ND;
    for (size_t i = 0; i < linears.size(); ++i) {
      const at::Tensor grad_NE = as_matrix(grads[i]);
      linears[i].weight->add_product(grad_NE, x_ND);
      if (linears[i].bias != nullptr)
        linears[i].bias->add(grad_NE.sum(0, false, accumulation_type(x_ND.scalar_type())));
      const at::Tensor wide_NE = widen(grad_NE);
      const at::Tensor weight_ED = widen(linears[i].weight->value);
      if (grad_x_ND.defined()) {
        grad_x_ND.addmm_(wide_NE, weight_ED);
      } else {
        grad_x_ND = at::mm(wide_NE, weight_ED);
      }
    }
    grad_x_ND = grad_x_ND.to(x_BTD.scalar_type());
    return {grad_x_ND.view_as(x_BTD), {}};
  }
};

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_BTD, Weight* weight,
                            double epsilon) {
    const at::Tensor wide_BTD = x_BTD.to(accumulation_type(x_BTD.scalar_type()));
    const at::Tensor inverse_BT1 = wide_BTD.square().mean(-1, true).add_(epsilon).rsqrt_();
    context->save_for_backward({x_BTD, inverse_BT1});
    store(context, weight);
    const at::Tensor normed_BTD = at::mul(wide_BTD, inverse_BT1).to(x_BTD.scalar_type());
    return normed_BTD.mul_(weight->value);
  }

  // y = w n, n = x r, r = 1 / rms(x): dx = r (dn - n mean(dn n)).
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    Weight& weight = *held<Weight*>(context);
    const at::ScalarType wide = accumulation_type(saved[0].scalar_type());
    const at::Tensor grad_BTD = grads[0].to(wide);
    const at::Tensor normed_BTD = at::mul(saved[0].to(wide), saved[1]);
    at::Tensor product_BTD = at::mul(grad_BTD, normed_BTD);
    weight.add(as_matrix(product_BTD).sum(0));
    product_BTD.mul_(weight.value);
    const at::Tensor mean_BT1 = product_BTD.mean(-1, true);
    at::Tensor grad_x_BTD = at::mul(grad_BTD, weight.value);
    grad_x_BTD.addcmul_(normed_BTD, mean_BT1, -1).mul_(saved[1]);
    return {grad_x_BTD.to(saved[0].scalar_type()), {}, {}};
  }
};

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_BTI,
                            const at::Tensor& up_BTI) {
    context->save_for_backward({gate_BTI, up_BTI});
    return at::silu(gate_BTI).mul_(up_BTI);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor grad_up_BTI = at::silu(saved[0]).mul_(grads[0]);
    const at::Tensor grad_gate_BTI = at::silu_backward(at::mul(grads[0], saved[1]), saved[0]);
    return {grad_gate_BTI, grad_up_BTI};
  }
};

}  // namespace

std::vector<at::Tensor> apply_linears(const at::Tensor& x_BTD, const std::vector<Linear>& linears) {
  return LinearsFunction::apply(x_BTD, linears);
}

at::Tensor apply_linear(const at::Tensor& x_BTD, const Linear& linear) {
  return apply_linears(x_BTD, {linear})[0];
}

at::Tensor rms_norm(const at::Tensor& x_BTD, Weight& weight, double epsilon) {
  return RmsNormFunction::apply(x_BTD, &weight, epsilon);
}

at::Tensor swiglu(const at::Tensor& gate_BTI, const at::Tensor& up_BTI) {
  return SwigluFunction::apply(gate_BTI, up_BTI);
}

}  // namespace xffl::llama
