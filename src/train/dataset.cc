#include "xffl/train/dataset.h"

#include <algorithm>
#include <string>

#include "xffl/base/error.h"
#include "xffl/llama/head_loss.h"

namespace xffl::train {

Dataset::Dataset(const std::vector<std::filesystem::path>& paths, int64_t vocab_size,
                 uint64_t max_sequences) {
  for (const std::filesystem::path& path : paths) {
    tokens::TokenShardReader shard(path);
    if (shard.info().vocab_size > static_cast<uint64_t>(vocab_size)) {
      throw Error(ErrorKind::kRejected,
                  path.string() + ": was made with a vocabulary of " +
                      std::to_string(shard.info().vocab_size) + " tokens, but the model has " +
                      std::to_string(vocab_size) + ": encode it with the model's tokenizer");
    }
    size_ += shard.info().num_sequences;
    ends_.push_back(size_);
    shards_.push_back(std::move(shard));
  }
  if (max_sequences != 0) size_ = std::min(size_, max_sequences);
}

Dataset::Place Dataset::place(uint64_t index) const {
  const auto shard =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  if (index >= size_ || shard >= shards_.size()) {
    throw Error(ErrorKind::kInternal,
                "sequence " + std::to_string(index) + " of " + std::to_string(size_));
  }
  return {shard, index - (shard == 0 ? 0 : ends_[shard - 1])};
}

int64_t Dataset::length(uint64_t index) const {
  const Place at = place(index);
  return static_cast<int64_t>(shards_[at.shard].length(at.index));
}

uint64_t Dataset::max_sequence_length() const {
  uint64_t longest = 0;
  for (const tokens::TokenShardReader& shard : shards_)
    longest = std::max(longest, shard.info().sequence_length);
  return longest;
}

Batch Dataset::batch(std::span<const uint64_t> indices, at::Device device) const {
  int64_t positions = 1;
  for (const uint64_t index : indices) positions = std::max(positions, length(index) - 1);
  const std::vector<int64_t> shape{static_cast<int64_t>(indices.size()), positions};
  Batch result{at::zeros(shape, at::kLong), at::full(shape, llama::kIgnoreLabel, at::kLong), 0};
  int64_t* tokens = result.tokens_BT.mutable_data_ptr<int64_t>();
  int64_t* labels = result.labels_BT.mutable_data_ptr<int64_t>();
  std::vector<int32_t> ids;
  for (const uint64_t index : indices) {
    const Place at = place(index);
    ids.resize(shards_[at.shard].length(at.index));
    shards_[at.shard].read(at.index, ids);
    std::copy_n(ids.begin(), std::min<size_t>(ids.size(), static_cast<size_t>(positions)), tokens);
    std::copy(ids.begin() + 1, ids.end(), labels);
    result.num_targets += static_cast<int64_t>(ids.size()) - 1;
    tokens += positions;
    labels += positions;
  }
  result.tokens_BT = result.tokens_BT.to(device);
  result.labels_BT = result.labels_BT.to(device);
  return result;
}

}  // namespace xffl::train
