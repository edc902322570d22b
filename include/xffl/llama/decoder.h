// Computes next-token logits of one sequence, a token at a time. A KV cache holds the keys and
// values of the fed tokens, so that a token costs one pass over the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "xffl/llama/model.h"

namespace xffl::llama {

class Decoder {
 public:
  /// Allocates `capacity` positions: 2 * capacity * layers * kv_heads * head_dim values in the
  /// dtype of the weights. The model has all units (no pipeline stage) and outlives this object;
  /// its weights do not change until then. A model has one decoder at a time.
  Decoder(Model& model, int64_t capacity);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// Feeds `ids` at the next positions and returns the float32 logits (V) of the token after the
  /// last id. The first call may feed any number of ids, later calls exactly one. Throws kInternal
  /// for another number of ids or a position beyond the capacity. The logits equal Model::hidden
  /// times the head.
  at::Tensor feed(const std::vector<int64_t>& ids);

 private:
  at::Tensor embed(const std::vector<int64_t>& ids);
  at::Tensor attention(const at::Tensor& x_BTD, int layer);
  at::Tensor block(const at::Tensor& x_BTD, int layer);

  Model& model_;
  int64_t capacity_;
  int64_t num_positions_ = 0;
  RopeTable rope_table_;               // for all positions
  std::vector<at::Tensor> keys_BCKH_;  // per layer; C positions; the first call allocates them
  std::vector<at::Tensor> values_BCKH_;
};

}  // namespace xffl::llama
