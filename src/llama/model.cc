// B sequences, T positions, D hidden, N heads, K key/value heads, H head_dim, I intermediate, F = H
// / 2, M = B T.
//
// How a Pass works: each block has its own autograd graph, from its detached input to its output. A
// block's backward runs once the block's weights are gathered, and frees the graph. With
// recomputation, backward builds the graph again from the block's input.
#include "xffl/llama/model.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <optional>

#include "attention.h"
#include "layers.h"
#include "pointwise.h"
#include "xffl/base/error.h"

namespace xffl::llama {
namespace {

constexpr UnitUse kGradients{false, true};
constexpr UnitUse kBoth{true, true};

// The gradient of the only input of a graph.
at::Tensor gradient(const at::Tensor& output, const at::Tensor& input, const at::Tensor& grad) {
  return torch::autograd::grad({output}, {input}, {grad})[0];
}

}  // namespace

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

Model::Model(checkpoint::LlamaConfig config, std::vector<Weight> weights, ModelOptions options)
    : config_(std::move(config)), weights_(std::move(weights)), options_(std::move(options)) {
  const std::vector<ParameterSpec> specs = parameter_specs(config_);
  std::vector<ParameterSpec> adapter;
  if (options_.lora) adapter = adapter_specs(config_, *options_.lora);
  if (specs.size() + adapter.size() != weights_.size())
    throw Error(ErrorKind::kInternal, "llama::Model: the weights do not match the parameters");
  std::map<std::string, Weight*> by_name;
  for (size_t i = 0; i < specs.size(); ++i) by_name[specs[i].name] = &weights_[i];
  for (size_t i = 0; i < adapter.size(); ++i)
    by_name[adapter[i].name] = &weights_[specs.size() + i];
  const auto find = [&](const std::string& name) -> Weight* {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : found->second;
  };
  if (options_.lora && options_.lora->dropout > 0)
    dropout_ = std::make_unique<LoraDropout>(LoraDropout{options_.lora->dropout});
  if (options_.lora && options_.lora->weight_decomposed) lengths_ = std::make_unique<KeptLengths>();
  uint64_t num_linears = 0;
  const auto linear = [&](const std::string& name) {
    const std::string lora = "base_model.model." + name + ".lora_";
    return Linear{find(name + ".weight"),
                  find(name + ".bias"),
                  {find(lora + "A.weight"), find(lora + "B.weight"),
                   options_.lora ? options_.lora->scaling() : 0.0, dropout_.get(), num_linears++,
                   find(lora + "magnitude_vector"), lengths_.get()}};
  };
  // An adapter may have the embedding and the head whole.
  const auto find_whole = [&](const std::string& name) {
    Weight* of_adapter = find("base_model.model." + name);
    return of_adapter != nullptr ? of_adapter : find(name);
  };
  embedding_ = find_whole("model.embed_tokens.weight");
  final_norm_ = find("model.norm.weight");
  head_ = find_whole("lm_head.weight");
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    Block block;
    block.input_norm = find(prefix + "input_layernorm.weight");
    block.attention_norm = find(prefix + "post_attention_layernorm.weight");
    block.q_norm = find(prefix + "self_attn.q_norm.weight");
    block.k_norm = find(prefix + "self_attn.k_norm.weight");
    block.qkv = {linear(prefix + "self_attn.q_proj"), linear(prefix + "self_attn.k_proj"),
                 linear(prefix + "self_attn.v_proj")};
    block.output = linear(prefix + "self_attn.o_proj");
    block.gate_up = {linear(prefix + "mlp.gate_proj"), linear(prefix + "mlp.up_proj")};
    block.down = linear(prefix + "mlp.down_proj");
    blocks_.push_back(std::move(block));
  }
  if (lengths_ != nullptr) lengths_->lengths_E.resize(num_linears);
  frequencies_F_ = rope_frequencies(config_.rope, config_.head_dim);
  for (size_t i = 0; i < specs.size(); ++i)
    if (i == 0 || specs[i].unit != specs[i - 1].unit) unit_begins_.push_back(i);
  unit_begins_.push_back(specs.size());
  if (options_.end_unit == 0) options_.end_unit = num_units();
  if (is_tied() && !has_embedding()) {
    head_copy_ = std::make_unique<Weight>();
    head_ = head_copy_.get();
  }
}

void Model::use_embedding(UnitUse use, const std::function<void(Weight& embedding)>& work) {
  const UseOfUnit in_use(options_.hooks, 0, use);
  work(*embedding_);
}

std::span<Weight> Model::weights(int unit) {
  return std::span(weights_).subspan(unit_begin(unit), unit_begin(unit + 1) - unit_begin(unit));
}

void Model::set_dropout_seed(std::optional<uint64_t> seed) {
  if (dropout_ != nullptr) dropout_->seed = seed;
}

std::span<Weight> Model::adapter_weights() {
  return std::span(weights_).subspan(unit_begins_.back());
}

RopeTable Model::table_of(int64_t num_positions, const at::TensorOptions& options) const {
  // Beyond this length the frequencies of all positions depend on the longest sequence of a batch.
  if (config_.rope.kind == checkpoint::RopeKind::kDynamic &&
      num_positions > config_.max_position_embeddings) {
    throw Error(ErrorKind::kUnsupported,
                "rope_scaling of the type dynamic: a sequence of " + std::to_string(num_positions) +
                    " positions, expected at most " +
                    std::to_string(config_.max_position_embeddings) +
                    " (max_position_embeddings): use shorter sequences or the type yarn");
  }
  return make_rope_table(frequencies_F_, num_positions, options, config_.rope.attention_factor);
}

Positions Model::positions_of(const at::Tensor& x_BTD, const Documents& documents) {
  const int64_t known = rope_table_.cos_TF.defined() ? rope_table_.cos_TF.size(0) : 0;
  // The CPU makes a table while a GPU waits, so Model keeps the longest table for all lengths.
  if (known < x_BTD.size(1)) rope_table_ = table_of(x_BTD.size(1), x_BTD.options());
  const RopeTable table = first_positions(rope_table_, x_BTD.size(1));
  const auto visible = [&] {
    if (!config_.sliding_window) return documents;
    return within_window(documents, *config_.sliding_window, x_BTD.size(0), x_BTD.size(1));
  };
  if (!documents.defined()) return {table, visible()};
  const at::Tensor& starts_BT = documents.starts_BT;
  if (starts_BT.sizes() != x_BTD.sizes().slice(0, 2) || starts_BT.scalar_type() != at::kLong ||
      !starts_BT.is_cpu() || !starts_BT.is_contiguous())
    throw Error(ErrorKind::kInternal,
                "llama::Documents: expected the starts of B x T positions, int64 on the CPU");
  return {at_positions(table, documents), visible()};
}

at::Tensor Model::attention(const at::Tensor& x_BTD, const Block& block, const Positions& where) {
  const int64_t batch = x_BTD.size(0);
  const int64_t positions = x_BTD.size(1);
  const std::vector<at::Tensor> qkv =
      apply_linears(rms_norm(x_BTD, *block.input_norm, config_.rms_norm_eps), block.qkv,
                    norm_again(x_BTD, *block.input_norm));
  const auto heads = [&](size_t i, Weight* norm) {
    return heads_of(qkv[i], config_.head_dim, norm, config_.rms_norm_eps);
  };
  const at::Tensor q_BTNH = apply_rope(heads(0, block.q_norm), where.rope);
  const at::Tensor k_BTKH = apply_rope(heads(1, block.k_norm), where.rope);
  const at::Tensor v_BTKH = heads(2, nullptr);
  const at::Tensor y_BTNH = causal_attention(q_BTNH, k_BTKH, v_BTKH, where.documents);
  return apply_linear(y_BTNH.reshape({batch, positions, -1}), block.output);
}

at::Tensor Model::embed(const at::Tensor& tokens_BT) {
  const UseOfUnit use(options_.hooks, 0, kValues);
  return at::embedding(embedding_->value, tokens_BT);
}

at::Tensor Model::block_forward(const at::Tensor& x_BTD, const Block& block,
                                const Positions& where) {
  const SumAndNorm middle = add_rms_norm(x_BTD, attention(x_BTD, block, where),
                                         *block.attention_norm, config_.rms_norm_eps);
  const std::vector<at::Tensor> gate_up = apply_linears(
      middle.normed_BTD, block.gate_up, norm_again(middle.sum_BTD, *block.attention_norm));
  InputAgain activation_again;
  if (options_.recompute == Recompute::kCheap) {
    activation_again = [gate = gate_up[0].detach(), up = gate_up[1].detach()] {
      return swiglu_forward(gate, up);
    };
  }
  return middle.sum_BTD +
         apply_linear(swiglu(gate_up[0], gate_up[1]), block.down, activation_again);
}

// Empty unless backward recomputes norms.
InputAgain Model::norm_again(const at::Tensor& x_BTD, Weight& weight) const {
  if (options_.recompute != Recompute::kCheap) return {};
  return [x = x_BTD.detach(), &weight, epsilon = config_.rms_norm_eps] {
    return rms_norm_forward(x, {}, weight.value, epsilon).normed_BTD;
  };
}

at::Tensor Model::trunk(at::Tensor x_BTD, const Documents& documents) {
  const Positions where = positions_of(x_BTD, documents);
  const int end = std::min(options_.end_unit, head_unit());
  for (int unit = std::max(options_.first_unit, 1); unit < end; ++unit) {
    const UseOfUnit use(options_.hooks, unit, kValues);
    x_BTD = block_forward(x_BTD, blocks_[static_cast<size_t>(unit - 1)], where);
  }
  return x_BTD;
}

at::Tensor Model::hidden(const at::Tensor& tokens_BT, const Documents& documents) {
  const at::NoGradGuard no_grad;
  const at::Tensor x_BTD = trunk(embed(tokens_BT), documents);
  const UseOfUnit use(options_.hooks, head_unit(), kValues);
  return rms_norm(x_BTD, *final_norm_, config_.rms_norm_eps);
}

at::Tensor Model::stage_nll(at::Tensor x_BTD, const at::Tensor& tokens_BT,
                            const at::Tensor& labels_BT, const Documents& documents,
                            at::Tensor* hits_BT) {
  const at::NoGradGuard no_grad;
  x_BTD = trunk(has_embedding() ? embed(tokens_BT) : std::move(x_BTD), documents);
  if (!has_head()) return x_BTD;
  const UseOfUnit use(options_.hooks, head_unit(), kValues);
  std::optional<UseOfUnit> tied;
  if (is_tied()) tied.emplace(options_.hooks, 0, kValues);
  const at::Tensor y_BTD = rms_norm(x_BTD, *final_norm_, config_.rms_norm_eps);
  const at::Tensor nll_BT =
      head_nll(y_BTD.flatten(0, 1), head().value, labels_BT.flatten(), hits_BT).view_as(labels_BT);
  if (hits_BT != nullptr) *hits_BT = hits_BT->view_as(labels_BT);
  return nll_BT;
}

at::Tensor Pass::block_forward(int unit, const at::Tensor& x_BTD) {
  const UseOfUnit use(model_.options_.hooks, unit, kValues);
  const Block& block = model_.blocks_[static_cast<size_t>(unit - 1)];
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
  const UseOfUnit use(model_.options_.hooks, model_.head_unit(), kBoth);
  const at::AutoGradMode grad(true);
  const at::Tensor input_BTD = trunk_BTD_.detach().requires_grad_(true);
  trunk_BTD_.reset();
  const at::Tensor y_BTD = rms_norm(input_BTD, *model_.final_norm_, model_.config_.rms_norm_eps);
  const HeadLoss loss = head_loss(y_BTD.detach().flatten(0, 1), model_.head(), labels_BT_.flatten(),
                                  scale_, &model_.logits_RV_, targets_, model_.phase_hook_);
  model_.enter(Phase::kBackward);
  nll_sum_ = loss.nll_sum;
  hits_ = loss.hits;
  return gradient(y_BTD, input_BTD, loss.grad_x_ND.view_as(y_BTD));
}

at::Tensor Pass::block_backward(int unit, const at::Tensor& grad_BTD) {
  const UseOfUnit use(model_.options_.hooks, unit, kBoth);
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
