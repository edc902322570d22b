// Token shards as one data set, and batches of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/llama/documents.h"
#include "xffl/llama/head_loss.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::train {

/// Sequences padded on the right; labels are shifted: labels_BT[b][t] is the token after
/// tokens_BT[b][t]. The last token of a sequence is a label only, so T is the longest sequence's
/// length - 1 (at least 1), or what batch_positions makes of it.
struct Batch {
  at::Tensor tokens_BT;  // int64
  at::Tensor labels_BT;  // int64
  int64_t num_targets = 0;
  llama::Targets targets;      // told for a GPU only
  llama::Documents documents;  // defined where they are masked and a sequence has several
};

/// T of a batch in which the longest sequence needs `positions`, where none may need more than
/// `most`: on a GPU rounded up, for its libraries prepare their work anew for each shape.
int64_t batch_positions(int64_t positions, int64_t most, at::Device device);

/// One token that predicts nothing: for a rank that has no sequence left, while others have.
Batch empty_batch(at::Device device);

/// What a model can take.
struct ModelLimits {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;

  explicit ModelLimits(const checkpoint::LlamaConfig& config)
      : vocab_size(config.vocab_size), max_positions(config.max_position_embeddings) {}
};

class Dataset {
 public:
  /// Shards one after the other; only the first `max_sequences` sequences when not 0. With
  /// `mask_documents` the documents of a packed sequence are apart: batches tell where they begin,
  /// and their first tokens are not predicted. Throws kRejected when a shard's vocabulary or a
  /// sequence in it is larger than the model's, and kNotFound, kCorrupt.
  Dataset(const std::vector<std::filesystem::path>& paths, const ModelLimits& limits,
          uint64_t max_sequences, bool mask_documents = false);

  uint64_t size() const { return size_; }
  int64_t length(uint64_t index) const;
  /// Tokens of the longest sequence of its shards.
  int64_t longest() const;
  /// Predicted tokens of a sequence that the loss falls on: all but the first, or those that its
  /// shard marks.
  int64_t num_targets(uint64_t index) const;

  Batch batch(std::span<const uint64_t> indices, at::Device device) const;

 private:
  struct Place {
    size_t shard;
    uint64_t index;
  };
  Place place(uint64_t index) const;
  std::vector<uint8_t> targets(const Place& at) const;
  llama::Documents documents(std::span<const uint64_t> indices, int64_t positions) const;

  std::vector<tokens::TokenShardReader> shards_;
  std::vector<uint64_t> ends_;  // sequences up to and including each shard
  uint64_t size_ = 0;
  int64_t most_positions_ = 1;
  bool mask_documents_;
};

}  // namespace xffl::train
