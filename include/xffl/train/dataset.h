// A data set of token shards, its batches, and the sequences that a group of ranks trains on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/job/job_spec.h"
#include "xffl/llama/head_loss.h"
#include "xffl/llama/rope.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::train {

/// Sequences padded on the right. Labels are shifted: labels_BT[b][t] is the token after
/// tokens_BT[b][t]. The last token of a sequence is a label only, so T is batch_positions() of the
/// longest sequence's length - 1 (at least 1).
struct Batch {
  at::Tensor tokens_BT;  // int64
  at::Tensor labels_BT;  // int64
  int64_t num_targets = 0;
  llama::Targets targets;      // set for a GPU only
  llama::Documents documents;  // set if documents are masked and a sequence has several
};

/// The T of a batch with a longest sequence of `positions` positions. On a GPU the function rounds
/// T up, to at most `most`, because a GPU's libraries prepare a plan for each shape.
int64_t batch_positions(int64_t positions, int64_t most, at::Device device);

/// One token without a target, for a rank that has no sequence while other ranks have one.
Batch empty_batch(at::Device device);

/// The largest token id and sequence length that a model accepts.
struct ModelLimits {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;

  explicit ModelLimits(const checkpoint::LlamaConfig& config)
      : vocab_size(config.vocab_size), max_positions(config.max_position_embeddings) {}
};

class Dataset {
 public:
  /// Concatenates the shards; keeps only the first `max_sequences` sequences if not 0. With
  /// `mask_documents` batches hold the starts of the documents of a packed sequence, and the first
  /// token of a document is not a target. Throws kRejected if a shard's vocabulary or a sequence
  /// exceeds the model's limits; throws kNotFound, kCorrupt.
  Dataset(const std::vector<std::filesystem::path>& paths, const ModelLimits& limits,
          uint64_t max_sequences, bool mask_documents = false);

  uint64_t size() const { return size_; }
  int64_t length(uint64_t index) const;
  /// The tokens of the longest sequence.
  int64_t longest() const;
  /// The number of target tokens of a sequence, which enter the loss: all tokens but the first, or
  /// the tokens that the shard marks.
  int64_t num_targets(uint64_t index) const;

  Batch batch(std::span<const uint64_t> indices, at::Device device) const;

 private:
  struct Location {
    size_t shard;
    uint64_t index;
  };
  Location locate(uint64_t index) const;
  std::vector<uint8_t> targets(const Location& at) const;
  llama::Documents documents(std::span<const uint64_t> indices, int64_t positions) const;

  std::vector<tokens::TokenShardReader> shards_;
  std::vector<uint64_t> ends_;  // sequences up to and including each shard
  uint64_t size_ = 0;
  int64_t most_positions_ = 1;
  bool mask_documents_;
};

/// The sequences that a group of ranks trains on.
///
/// If there are at least as many train_paths as groups, path i belongs to group i modulo the number
/// of groups. A group then trains like a facility with the group's paths. With fewer paths,
/// sequence i of all paths belongs to group i modulo the number of groups.
class TrainingData {
 public:
  /// The sequences of group `group` of spec.training.groups.count, at most train_samples. Throws
  /// kRejected if the group has no sequence, and the errors of Dataset.
  TrainingData(const job::JobSpec& spec, const ModelLimits& limits, int group);

  const Dataset& dataset() const { return dataset_; }
  /// The number of sequences of the group.
  uint64_t size() const;
  /// Converts indices of the group's sequences to indices of dataset().
  std::vector<uint64_t> in_dataset(std::vector<uint64_t> indices) const;

 private:
  uint64_t first_ = 0;   // the group's first sequence in the data set
  uint64_t stride_ = 1;  // between the group's sequences
  Dataset dataset_;
};

}  // namespace xffl::train
