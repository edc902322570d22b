// The LLaMA decoder (Touvron et al., 2023; grouped queries: Ainslie et al., 2023), numerically as
// Hugging Face's LlamaForCausalLM: attention is causal without masks, so sequences of several
// lengths are padded on the right with any token and the label kIgnoreLabel.
//
// The model works unit by unit (see parameters.h) and touches a unit's weights only between
// hooks.enter and hooks.leave, so that they need not be there, or not whole, at other times.
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
#include "xffl/llama/documents.h"
#include "xffl/llama/head_loss.h"
#include "xffl/llama/parameters.h"
#include "xffl/llama/phase.h"
#include "xffl/llama/rope.h"
#include "xffl/llama/weight.h"

namespace xffl::llama {

struct LoraDropout;

/// What a unit's weights are wanted for.
struct UnitUse {
  bool values = false;
  bool gradients = false;
};

/// Called around each use of a unit, in the order forward 0, 1, ... and backward ..., 1, 0. After
/// `enter` the values (and the gradients' places) of model.weights(unit) are ready; after `leave`
/// with `gradients`, this micro-batch adds nothing more to them. Uses of different units may
/// overlap; those of one unit do not.
struct UnitHooks {
  std::function<void(int unit, UnitUse use)> enter;
  std::function<void(int unit, UnitUse use)> leave;
};

/// What backward computes again instead of keeping it, with the same bits: kCheap the outputs of
/// norms and of SwiGLU, kFull all of a block from its input.
enum class Recompute { kNone, kCheap, kFull };

struct ModelOptions {
  UnitHooks hooks;
  Recompute recompute = Recompute::kNone;
  /// Units [first_unit, end_unit) are worked here, the others by other pipeline stages; end_unit 0
  /// means all. A tied head cannot be apart from its embedding (kUnsupported).
  int first_unit = 0;
  int end_unit = 0;
  /// With an adapter beside the linear layers that it names.
  std::optional<checkpoint::LoraConfig> lora{};
};

class Model {
 public:
  /// `weights` in the order of parameter_specs(config), with options.lora followed by those of
  /// adapter_specs(); all of one dtype and device, those of other stages may be undefined. Values
  /// and gradients may be empty until hooks.enter; without gradients a weight is frozen.
  Model(checkpoint::LlamaConfig config, std::vector<Weight> weights, ModelOptions options = {});
  ~Model();
  Model(Model&&) noexcept;

  const checkpoint::LlamaConfig& config() const { return config_; }
  int num_units() const { return static_cast<int>(unit_begins_.size()) - 1; }
  /// Whether the first, or the last, unit is worked here.
  bool has_embedding() const { return options_.first_unit == 0; }
  bool has_head() const { return options_.end_unit == num_units(); }
  /// The index of a unit's first parameter, and that after its last (of parameter_specs).
  size_t unit_begin(int unit) const { return unit_begins_.at(static_cast<size_t>(unit)); }
  std::span<Weight> weights(int unit);
  /// The adapter's, in the order of adapter_specs(); empty without one.
  std::span<Weight> adapter_weights();
  void set_hooks(UnitHooks hooks) { options_.hooks = std::move(hooks); }

  /// Called by each Pass; an empty one by none.
  void set_phase_hook(PhaseHook hook) { phase_hook_ = std::move(hook); }

  /// Of the adapter's dropout in what follows; nothing: none is dropped. The same seed draws the
  /// same masks, also when a block is computed again.
  void set_dropout_seed(std::optional<uint64_t> seed);

  /// The hidden states after the final norm; tokens are int64.
  at::Tensor hidden(const at::Tensor& tokens_BT, const Documents& documents = {});

  /// Forward and backward: adds the gradients of scale * (sum of the labels' NLL) to the weights.
  /// Returns the sum of the NLL, a float64 scalar. labels_BT[b][t] is the token that position t
  /// predicts, or kIgnoreLabel.
  at::Tensor accumulate_gradients(const at::Tensor& tokens_BT, const at::Tensor& labels_BT,
                                  double scale, const Documents& documents = {});

  /// The NLL of each label in float32, 0 where ignored; no gradients.
  at::Tensor nll(const at::Tensor& tokens_BT, const at::Tensor& labels_BT,
                 const Documents& documents = {}) {
    return stage_nll({}, tokens_BT, labels_BT, documents);
  }
  /// This stage's part in nll(): takes the former stage's output (undefined in the first stage) and
  /// returns this one's, of the same shape; the last stage returns the NLL.
  at::Tensor stage_nll(at::Tensor x_BTD, const at::Tensor& tokens_BT, const at::Tensor& labels_BT,
                       const Documents& documents);

  /// The next accumulate_gradients overwrites the gradients.
  void clear_gradients();
  /// Zeroes the gradients that nothing was added to since clear_gradients().
  void finish_gradients();

 private:
  friend class Pass;
  friend class Decoder;
  struct Block;
  class Use;
  void enter(Phase phase) const {
    if (phase_hook_) phase_hook_(phase);
  }
  int head_unit() const { return num_units() - 1; }
  bool is_tied() const { return head_ == nullptr; }
  Weight& head() { return head_ != nullptr ? *head_ : *embedding_; }
  at::Tensor embed(const at::Tensor& tokens_BT);
  at::Tensor trunk(at::Tensor x_BTD, const Documents& documents);
  at::Tensor block_forward(const at::Tensor& x_BTD, const Block& block, const Positions& where);
  at::Tensor attention(const at::Tensor& x_BTD, const Block& block, const Positions& where);
  std::function<at::Tensor()> norm_again(const at::Tensor& x_BTD, Weight& weight) const;
  Positions positions_of(const at::Tensor& x_BTD, const Documents& documents);

  checkpoint::LlamaConfig config_;
  std::vector<Weight> weights_;
  ModelOptions options_;
  std::vector<size_t> unit_begins_;
  std::vector<Block> blocks_;
  std::unique_ptr<LoraDropout> dropout_;  // blocks point to it
  Weight* embedding_ = nullptr;
  Weight* final_norm_ = nullptr;
  Weight* head_ = nullptr;  // null when tied to the embedding
  at::Tensor frequencies_F_;
  PhaseHook phase_hook_;
  RopeTable rope_table_;
  at::Tensor logits_RV_;  // kept from step to step: see head_loss
};

}  // namespace xffl::llama
