#include "lora.h"

#include <mutex>

#include "product.h"
#include "xffl/base/random.h"

namespace xffl::llama {
namespace {

std::optional<uint64_t> seed_of(const Lora& lora) {
  if (lora.dropout == nullptr || !lora.dropout->seed) return std::nullopt;
  return *lora.dropout->seed + (lora.layer + 1) * kSplitMix64Step;
}

// Elements 0 or 1 / (1 - p), from the device's default generator, which every draw seeds first.
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

}  // namespace

LoraTape add_lora(at::Tensor y_BTE, const at::Tensor& x_BTD, const Lora& lora) {
  LoraTape tape{{}, seed_of(lora)};
  const at::Tensor dropped_BTD =
      tape.seed ? mask_like(x_BTD, lora.dropout->probability, *tape.seed).mul_(x_BTD) : x_BTD;
  tape.h_BTR = multiply_linear(dropped_BTD, lora.a->value, {});
  y_BTE.add_(multiply_linear(tape.h_BTR, lora.b->value, {}), lora.scaling);
  return tape;
}

void add_lora_gradients(const Lora& lora, const LoraTape& tape, const at::Tensor& grad_NE,
                        const at::Tensor& x_ND, at::Tensor& grad_x_ND) {
  lora.b->add_product(grad_NE, tape.h_BTR.flatten(0, -2), lora.scaling);
  const at::Tensor grad_h_NR = llama::multiply(grad_NE, lora.b->value).mul_(lora.scaling);
  if (!tape.seed) {
    lora.a->add_product(grad_h_NR, x_ND);
    return add_multiplied(grad_x_ND, grad_h_NR, lora.a->value);
  }
  const at::Tensor mask_ND = mask_like(x_ND, lora.dropout->probability, *tape.seed);
  lora.a->add_product(grad_h_NR, mask_ND.mul(x_ND));
  grad_x_ND.add_(llama::multiply(grad_h_NR, lora.a->value).mul_(mask_ND));
}

}  // namespace xffl::llama
