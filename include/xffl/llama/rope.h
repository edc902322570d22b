// Positions: the documents in packed sequences, and rotary position embedding (Su et al., 2021) in
// the variants default, linear, dynamic, llama3 and yarn, with the numerics of Hugging Face's
// transformers: angles in float32, cosine and sine rounded to the activations' dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "xffl/checkpoint/llama_config.h"

namespace xffl::llama {

/// The first tokens of the documents in packed sequences. Attention stays inside a document, and
/// positions count from the document's first token. The model then gives the results of separate
/// documents.
struct Documents {
  /// For each of B T positions, the position of its document's first token in the same sequence;
  /// ascending along T. int64 on the CPU, contiguous. Undefined: each sequence is one document.
  at::Tensor starts_BT;

  bool defined() const { return starts_BT.defined(); }
};

/// Radians per position for each of the head_dim / 2 rotated pairs: float32 on the CPU. With
/// dynamic scaling, those of sequences up to max_position_embeddings, which have no scaling.
at::Tensor rope_frequencies(const checkpoint::Rope& rope, int64_t head_dim);

struct RopeTable {
  at::Tensor cos_TF;  // F = head_dim / 2; B T rows if sequences have different positions
  at::Tensor sin_TF;
};
/// The rows of positions 0 .. num_positions - 1, times `scale` (yarn's attention_factor). A row has
/// the same bits in a table of any length.
RopeTable make_rope_table(const at::Tensor& frequencies_F, int64_t num_positions,
                          const at::TensorOptions& options, double scale = 1.0);
/// A view of the first `count` rows.
RopeTable first_positions(const RopeTable& table, int64_t count);

/// The rows of positions that count from each document's first token: B T rows, from a table of at
/// least T rows.
RopeTable at_positions(const RopeTable& table, const Documents& documents);

/// Shortens the view of T positions in B sequences to the last `window` positions: the starts of
/// `documents`, or of one document per sequence, become the first positions that attention sees.
Documents within_window(const Documents& documents, int64_t window, int64_t batch, int64_t length);

/// The positions of a micro-batch's tokens, for attention.
struct Positions {
  RopeTable rope;
  Documents documents;  // with the sliding window, if any
};

/// Rotates the pairs (i, i + F) of the last dimension by the position's angles; differentiable in
/// x.
at::Tensor apply_rope(const at::Tensor& x_BTNH, const RopeTable& table);

}  // namespace xffl::llama
