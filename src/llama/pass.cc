// B sequences, T positions, D hidden.
//
// How it works: each block has its own autograd graph, from its detached input to its output. A
// block's backward runs once the block's weights are gathered, and frees the graph. With
// recomputation, backward builds the graph again from the input.
#include "xffl/llama/pass.h"

#include <torch/autograd.h>

#include <algorithm>

#include "model_block.h"

namespace xffl::llama {
namespace {

constexpr UnitUse kValues{true, false};
constexpr UnitUse kGradients{false, true};
constexpr UnitUse kBoth{true, true};

// The gradient of a graph's one input.
at::Tensor gradient(const at::Tensor& output, const at::Tensor& input, const at::Tensor& grad) {
  return torch::autograd::grad({output}, {input}, {grad})[0];
}

}  // namespace

at::Tensor Pass::block_forward(int unit, const at::Tensor& x_BTD) {
  const Model::Use use(model_, unit, kValues);
  const Model::Block& block = model_.blocks_[static_cast<size_t>(unit - 1)];
  if (model_.options_.recompute == Recompute::kFull) {
    const at::NoGradGuard no_grad;
    tape_.push_back({x_BTD, {}});
    return model_.block_forward(x_BTD, block, where_);
  }
  const at::AutoGradMode grad(true);
  const at::Tensor input_BTD = x_BTD.detach().requires_grad_(true);
  tape_.push_back({input_BTD, model_.block_forward(input_BTD, block, where_)});
  return tape_.back().output_BTD.detach();
}

at::Tensor Pass::forward(at::Tensor x_BTD) {
  model_.enter(Phase::kForward);
  if (model_.has_embedding()) x_BTD = model_.embed(tokens_BT_);
  where_ = model_.positions_of(x_BTD, documents_);
  const int end = std::min(model_.options_.end_unit, model_.head_unit());
  for (int unit = std::max(model_.options_.first_unit, 1); unit < end; ++unit)
    x_BTD = block_forward(unit, x_BTD);
  trunk_BTD_ = x_BTD;
  return x_BTD;
}

at::Tensor Pass::head_backward() {
  model_.enter(Phase::kHead);
  // A tied head uses unit 0, which stays in use until the embedding's backward.
  if (model_.is_tied() && model_.options_.hooks.enter) model_.options_.hooks.enter(0, kBoth);
  const Model::Use use(model_, model_.head_unit(), kBoth);
  const at::AutoGradMode grad(true);
  const at::Tensor input_BTD = trunk_BTD_.detach().requires_grad_(true);
  trunk_BTD_.reset();
  const at::Tensor y_BTD = rms_norm(input_BTD, *model_.final_norm_, model_.config_.rms_norm_eps);
  const HeadLoss loss = head_loss(y_BTD.detach().flatten(0, 1), model_.head(), labels_BT_.flatten(),
                                  scale_, &model_.logits_RV_, targets_, model_.phase_hook_);
  model_.enter(Phase::kBackward);
  nll_sum_ = loss.nll_sum;
  return gradient(y_BTD, input_BTD, loss.grad_x_ND.view_as(y_BTD));
}

at::Tensor Pass::block_backward(int unit, const at::Tensor& grad_BTD) {
  const Model::Use use(model_, unit, kBoth);
  BlockTape tape = std::move(tape_.back());
  tape_.pop_back();
  if (!tape.output_BTD.defined()) {
    const at::AutoGradMode grad(true);
    tape.input_BTD = tape.input_BTD.detach().requires_grad_(true);
    tape.output_BTD =
        model_.block_forward(tape.input_BTD, model_.blocks_[static_cast<size_t>(unit - 1)], where_);
  }
  return gradient(tape.output_BTD, tape.input_BTD, grad_BTD);
}

void Pass::embedding_backward(const at::Tensor& grad_BTD) {
  const bool in_use = model_.is_tied();
  if (!in_use && model_.options_.hooks.enter) model_.options_.hooks.enter(0, kGradients);
  model_.embedding_->add_rows(tokens_BT_.flatten(), grad_BTD.flatten(0, 1));
  if (model_.options_.hooks.leave) model_.options_.hooks.leave(0, in_use ? kBoth : kGradients);
}

at::Tensor Pass::backward(at::Tensor grad_BTD) {
  if (model_.has_head())
    grad_BTD = head_backward();
  else
    model_.enter(Phase::kBackward);
  const int first = std::max(model_.options_.first_unit, 1);
  for (int unit = first + static_cast<int>(tape_.size()) - 1; unit >= first; --unit)
    grad_BTD = block_backward(unit, grad_BTD);
  if (!model_.has_embedding()) return grad_BTD;
  embedding_backward(grad_BTD);
  return {};
}

}  // namespace xffl::llama
