// The LLaMA decoder (Touvron et al., 2023; grouped queries: Ainslie et al., 2023), with the
// numerics of Hugging Face's LlamaForCausalLM. Attention is causal without masks. Callers therefore
// pad shorter sequences on the right, with any token and the label kIgnoreLabel.
//
// The model works unit by unit (see parameters.h) and touches a unit's weights only between
// hooks.enter and hooks.leave. At other times the weights may be sharded or freed.
//
// B sequences, T positions, D hidden, N heads, K key/value heads, H head_dim, F = H / 2, V
// vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/job/job_spec.h"
#include "xffl/llama/head_loss.h"
#include "xffl/llama/parameters.h"
#include "xffl/llama/rope.h"
#include "xffl/llama/weight.h"

namespace xffl::llama {

struct Block;
struct LoraDropout;
struct KeptLengths;

/// The purpose of a use of a unit's weights.
struct UnitUse {
  bool values = false;
  bool gradients = false;
};

/// The model calls the hooks around each use of a unit, in the order forward 0, 1, ... and backward
/// ..., 1, 0. After `enter` the values (and the gradients' memory) of model.weights(unit) are
/// ready. After `leave` with `gradients`, this micro-batch adds no more gradients to the unit's
/// weights. Uses of different units may overlap; uses of one unit do not.
struct UnitHooks {
  std::function<void(int unit, UnitUse use)> enter;
  std::function<void(int unit, UnitUse use)> leave;
};

/// The activations that the backward pass recomputes, with the same bits. kCheap recomputes the
/// outputs of norms and of SwiGLU, kFull a whole block from its input.
using job::Recompute;

struct ModelOptions {
  UnitHooks hooks;
  Recompute recompute = Recompute::kNone;
  /// This process works on units [first_unit, end_unit), other pipeline stages on the other units;
  /// end_unit 0 means all units. A tied head without its embedding needs head_copy().
  int first_unit = 0;
  int end_unit = 0;
  /// Adds an adapter to the linear layers that the configuration names.
  std::optional<checkpoint::LoraConfig> lora{};
};

class Model {
 public:
  /// `weights` has the order of parameter_specs(config), followed, with options.lora, by
  /// adapter_specs(). All weights have one dtype and device; weights of other stages may be
  /// undefined. Values and gradients may be empty until hooks.enter; a weight without gradients is
  /// frozen.
  Model(checkpoint::LlamaConfig config, std::vector<Weight> weights, ModelOptions options = {});
  ~Model();
  Model(Model&&) noexcept;

  const checkpoint::LlamaConfig& config() const { return config_; }
  int num_units() const { return static_cast<int>(unit_begins_.size()) - 1; }
  /// Whether this stage has the first, or the last, unit.
  bool has_embedding() const { return options_.first_unit == 0; }
  bool has_head() const { return options_.end_unit == num_units(); }
  /// The index of a unit's first parameter, and the index after its last (in parameter_specs).
  size_t unit_begin(int unit) const { return unit_begins_.at(static_cast<size_t>(unit)); }
  std::span<Weight> weights(int unit);
  /// The adapter's weights, in the order of adapter_specs(); empty without an adapter.
  std::span<Weight> adapter_weights();
  void set_hooks(UnitHooks hooks) { options_.hooks = std::move(hooks); }

  /// The last stage's own copy of a tied head whose embedding is on another stage, null in all
  /// other cases. The caller sets the values, and the gradient of a trained head.
  Weight* head_copy() { return head_copy_.get(); }
  /// Calls `work` with the embedding, between the hooks of unit 0.
  void use_embedding(UnitUse use, const std::function<void(Weight& embedding)>& work);

  /// Each Pass calls the hook; an empty hook is never called.
  void set_phase_hook(PhaseHook hook) { phase_hook_ = std::move(hook); }

  /// Sets the seed of the adapter's dropout for later calls; nullopt: no dropout. The same seed
  /// draws the same masks, also when backward recomputes a block.
  void set_dropout_seed(std::optional<uint64_t> seed);

  /// The hidden states after the final norm; tokens are int64.
  at::Tensor hidden(const at::Tensor& tokens_BT, const Documents& documents = {});

  /// Takes the previous stage's output (undefined in the first stage) and returns this stage's
  /// output, of the same shape; the last stage returns the NLL of each label in float32, 0 for
  /// kIgnoreLabel. No gradients. In the last stage `hits_BT`, if not null, receives the labels'
  /// hits (see head_nll()).
  at::Tensor stage_nll(at::Tensor x_BTD, const at::Tensor& tokens_BT, const at::Tensor& labels_BT,
                       const Documents& documents, at::Tensor* hits_BT = nullptr);

 private:
  friend class Pass;
  friend class Decoder;
  void enter(Phase phase) const {
    if (phase_hook_) phase_hook_(phase);
  }
  int head_unit() const { return num_units() - 1; }
  bool is_tied() const { return head_ == nullptr && has_head(); }
  Weight& head() { return head_ != nullptr ? *head_ : *embedding_; }
  at::Tensor embed(const at::Tensor& tokens_BT);
  at::Tensor trunk(at::Tensor x_BTD, const Documents& documents);
  at::Tensor block_forward(const at::Tensor& x_BTD, const Block& block, const Positions& where);
  at::Tensor attention(const at::Tensor& x_BTD, const Block& block, const Positions& where);
  std::function<at::Tensor()> norm_again(const at::Tensor& x_BTD, Weight& weight) const;
  RopeTable table_of(int64_t num_positions, const at::TensorOptions& options) const;
  Positions positions_of(const at::Tensor& x_BTD, const Documents& documents);

  checkpoint::LlamaConfig config_;
  std::vector<Weight> weights_;
  ModelOptions options_;
  std::vector<size_t> unit_begins_;
  std::vector<Block> blocks_;
  std::unique_ptr<LoraDropout> dropout_;  // blocks point to it
  std::unique_ptr<KeptLengths> lengths_;  // blocks point to it; null without DoRA
  Weight* embedding_ = nullptr;
  Weight* final_norm_ = nullptr;
  Weight* head_ = nullptr;  // null when tied to the embedding of this stage
  std::unique_ptr<Weight> head_copy_;
  at::Tensor frequencies_F_;
  PhaseHook phase_hook_;
  RopeTable rope_table_;
  at::Tensor logits_RV_;  // kept from step to step: see head_loss
};

/// One micro-batch's forward and backward through this process's units.
///
/// In a pipeline's stage, other micro-batches may run between forward and backward. The Pass keeps
/// activations per block, and frees a block's activations right after the block's backward.
class Pass {
 public:
  /// For the gradients of scale * (sum of the labels' NLL). The first stage needs tokens, the last
  /// stage labels, and all stages documents. labels_BT[b][t] is the token that position t predicts,
  /// or kIgnoreLabel. `targets` are the targets of the flattened labels.
  Pass(Model& model, at::Tensor tokens_BT, at::Tensor labels_BT, double scale,
       Documents documents = {}, Targets targets = {})
      : model_(model),
        tokens_BT_(std::move(tokens_BT)),
        labels_BT_(std::move(labels_BT)),
        scale_(scale),
        documents_(std::move(documents)),
        targets_(std::move(targets)) {}

  /// Takes the previous stage's output (undefined in the first stage) and returns this stage's
  /// output, before the final norm.
  at::Tensor forward(at::Tensor x_BTD);
  /// Takes the gradient of forward's result (undefined in the last stage, which computes the loss
  /// here) and returns the gradient of forward's input (undefined in the first stage). Adds to the
  /// weights' gradients.
  at::Tensor backward(at::Tensor grad_BTD);
  /// The last stage's sum of the NLL, a float64 scalar, after backward.
  const at::Tensor& nll_sum() const { return nll_sum_; }
  /// The last stage's number of hits (see HeadLoss), a float64 scalar, after backward.
  const at::Tensor& hits() const { return hits_; }

 private:
  struct BlockTape {
    at::Tensor input_BTD;
    at::Tensor output_BTD;  // undefined: backward recomputes it
  };
  at::Tensor block_forward(int unit, const at::Tensor& x_BTD);
  at::Tensor block_backward(int unit, const at::Tensor& grad_BTD);
  at::Tensor head_backward();
  void embedding_backward(const at::Tensor& grad_BTD);

  Model& model_;
  at::Tensor tokens_BT_;
  at::Tensor labels_BT_;
  double scale_;
  Documents documents_;
  Targets targets_;
  Positions where_;  // set by forward
  std::vector<BlockTape> tape_;
  at::Tensor trunk_BTD_;  // the last block's output
  at::Tensor nll_sum_, hits_;
};

}  // namespace xffl::llama
