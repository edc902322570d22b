// The LLaMA decoder (Touvron et al., 2023; grouped queries: Ainslie et al., 2023), numerically as
// Hugging Face's LlamaForCausalLM: attention is causal without masks, so sequences of several
// lengths are padded on the right with any token and the label kIgnoreLabel.
//
// B sequences, T positions, D hidden, N heads, K key/value heads, H head_dim, F = H / 2, V
// vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/llama/head_loss.h"
#include "xffl/llama/parameters.h"
#include "xffl/llama/rope.h"
#include "xffl/llama/weight.h"

namespace xffl::llama {

class Model {
 public:
  /// `weights` in the order of parameter_specs(config), all of one dtype and device.
  Model(checkpoint::LlamaConfig config, std::vector<Weight> weights);
  ~Model();
  Model(Model&&) noexcept;

  const checkpoint::LlamaConfig& config() const { return config_; }

  /// The hidden states after the final norm; tokens are int64.
  at::Tensor hidden(const at::Tensor& tokens_BT);

  /// Forward and backward: adds the gradients of scale * (sum of the labels' NLL) to the weights.
  /// Returns the sum of the NLL, a float64 scalar. labels_BT[b][t] is the token that position t
  /// predicts, or kIgnoreLabel.
  at::Tensor accumulate_gradients(const at::Tensor& tokens_BT, const at::Tensor& labels_BT,
                                  double scale);

  /// The NLL of each label in float32, 0 where ignored; no gradients.
  at::Tensor nll(const at::Tensor& tokens_BT, const at::Tensor& labels_BT);

  /// The next accumulate_gradients overwrites the gradients.
  void clear_gradients();
  /// Zeroes the gradients that nothing was added to since clear_gradients().
  void finish_gradients();

 private:
  struct Block;
  at::Tensor embed(const at::Tensor& tokens_BT) const;
  at::Tensor trunk(at::Tensor x_BTD);
  at::Tensor attention(const at::Tensor& x_BTD, const Block& block);
  const RopeTable& rope_table(int64_t num_positions);
  Weight& head() { return head_ != nullptr ? *head_ : *embedding_; }

  checkpoint::LlamaConfig config_;
  std::vector<Weight> weights_;
  std::vector<Block> blocks_;
  Weight* embedding_ = nullptr;
  Weight* final_norm_ = nullptr;
  Weight* head_ = nullptr;  // null when tied to the embedding
  at::Tensor frequencies_F_;
  RopeTable rope_table_;
};

}  // namespace xffl::llama
