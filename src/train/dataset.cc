#include "xffl/train/dataset.h"

#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "xffl/base/error.h"

namespace xffl::train {
namespace {

// The header gives the maximum length allowed; the sequences may be shorter.
uint64_t longest_sequence(const tokens::TokenShardReader& shard) {
  if (shard.info().packed) return shard.info().sequence_length;
  uint64_t longest = 0;
  for (uint64_t i = 0; i < shard.info().num_sequences; ++i)
    longest = std::max<uint64_t>(longest, shard.length(i));
  return longest;
}

void check_fits(const tokens::TokenShardReader& shard, const ModelLimits& limits) {
  const std::string path = shard.path().string();
  if (shard.info().vocab_size > static_cast<uint64_t>(limits.vocab_size)) {
    throw Error(ErrorKind::kRejected,
                path + ": was made with a vocabulary of " +
                    std::to_string(shard.info().vocab_size) + " tokens, but the model has " +
                    std::to_string(limits.vocab_size) + ": encode it with the model's tokenizer");
  }
  if (shard.info().sequence_length <= static_cast<uint64_t>(limits.max_positions)) return;
  const uint64_t longest = longest_sequence(shard);
  if (longest > static_cast<uint64_t>(limits.max_positions)) {
    throw Error(ErrorKind::kRejected,
                path + ": has sequences of up to " + std::to_string(longest) +
                    " tokens, but the model's config.json has max_position_embeddings " +
                    std::to_string(limits.max_positions) + ": encode with --sequence-length " +
                    std::to_string(limits.max_positions) +
                    ", or with data.text set data.sequence_length to " +
                    std::to_string(limits.max_positions) + " and repeat `xffl prepare`");
  }
}

// Computes the targets from labels that are still on the host.
llama::Targets targets_of(const Batch& batch, at::Device device) {
  llama::Targets targets{batch.num_targets};
  if (batch.num_targets == batch.labels_BT.numel()) return targets;
  targets.rows_M = at::empty({batch.num_targets},
                             at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda()));
  int64_t* row = targets.rows_M.mutable_data_ptr<int64_t>();
  const int64_t* labels = batch.labels_BT.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < batch.labels_BT.numel(); ++i)
    if (labels[i] != llama::kIgnoreLabel) *row++ = i;
  targets.rows_M = targets.rows_M.to(device, /*non_blocking=*/true);
  return targets;
}

bool is_interleaved(const job::JobSpec& spec) {
  return spec.train_paths.size() < static_cast<size_t>(spec.training.groups.count);
}

std::vector<std::filesystem::path> paths_of(const job::JobSpec& spec, int group) {
  if (is_interleaved(spec)) return {spec.train_paths.begin(), spec.train_paths.end()};
  std::vector<std::filesystem::path> paths;
  const auto count = static_cast<size_t>(spec.training.groups.count);
  for (size_t i = static_cast<size_t>(group); i < spec.train_paths.size(); i += count)
    paths.emplace_back(spec.train_paths[i]);
  return paths;
}

}  // namespace

Dataset::Dataset(const std::vector<std::filesystem::path>& paths, const ModelLimits& limits,
                 uint64_t max_sequences, bool mask_documents)
    : mask_documents_(mask_documents) {
  for (const std::filesystem::path& path : paths) {
    tokens::TokenShardReader shard(path);
    check_fits(shard, limits);
    const auto longest = static_cast<int64_t>(shard.info().sequence_length);
    most_positions_ = std::max(most_positions_, std::min(longest - 1, limits.max_positions));
    size_ += shard.info().num_sequences;
    ends_.push_back(size_);
    shards_.push_back(std::move(shard));
  }
  if (max_sequences != 0) size_ = std::min(size_, max_sequences);
}

Dataset::Location Dataset::locate(uint64_t index) const {
  const auto shard =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  if (index >= size_ || shard >= shards_.size()) {
    throw Error(ErrorKind::kInternal,
                "sequence " + std::to_string(index) + " of " + std::to_string(size_));
  }
  return {shard, index - (shard == 0 ? 0 : ends_[shard - 1])};
}

int64_t Dataset::length(uint64_t index) const {
  const Location at = locate(index);
  return static_cast<int64_t>(shards_[at.shard].length(at.index));
}

int64_t batch_positions(int64_t positions, int64_t most, at::Device device) {
  constexpr int64_t kMultiple = 128;
  if (!device.is_cuda()) return positions;
  return std::max(positions, std::min(most, (positions + kMultiple - 1) / kMultiple * kMultiple));
}

Batch empty_batch(at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  Batch batch{at::zeros({1, 1}, options), at::full({1, 1}, llama::kIgnoreLabel, options), 0};
  if (!device.is_cpu()) batch.targets = {0, at::empty({0}, options)};
  return batch;
}

int64_t Dataset::longest() const {
  uint64_t longest = 1;
  for (const tokens::TokenShardReader& shard : shards_)
    longest = std::max(longest, longest_sequence(shard));
  return static_cast<int64_t>(longest);
}

int64_t Dataset::num_targets(uint64_t index) const {
  const Location at = locate(index);
  const tokens::TokenShardReader& shard = shards_[at.shard];
  if (!mask_documents_) return static_cast<int64_t>(shard.num_targets(at.index));
  if (!shard.info().has_targets)
    return static_cast<int64_t>(shard.length(at.index) - shard.document_starts(at.index).size());
  const std::vector<uint8_t> is_target = targets(at);
  return std::count(is_target.begin() + 1, is_target.end(), uint8_t{1});
}

std::vector<uint8_t> Dataset::targets(const Location& at) const {
  const tokens::TokenShardReader& shard = shards_[at.shard];
  std::vector<uint8_t> is_target(shard.length(at.index));
  shard.read_targets(at.index, is_target);
  if (mask_documents_)
    for (const uint32_t start : shard.document_starts(at.index)) is_target[start] = 0;
  return is_target;
}

llama::Documents Dataset::documents(std::span<const uint64_t> indices, int64_t positions) const {
  const std::vector<int64_t> shape{static_cast<int64_t>(indices.size()), positions};
  const at::Tensor starts_BT = at::zeros(shape, at::kLong);
  bool several = false;
  int64_t* row = starts_BT.mutable_data_ptr<int64_t>();
  for (const uint64_t index : indices) {
    const Location at = locate(index);
    for (const uint32_t start : shards_[at.shard].document_starts(at.index)) {
      if (start >= positions) continue;  // the last token: a label only
      several = several || start > 0;
      std::fill(row + start, row + positions, int64_t{start});
    }
    row += positions;
  }
  return several ? llama::Documents{starts_BT} : llama::Documents{};
}

Batch Dataset::batch(std::span<const uint64_t> indices, at::Device device) const {
  int64_t positions = 1;
  for (const uint64_t index : indices) positions = std::max(positions, length(index) - 1);
  positions = batch_positions(positions, most_positions_, device);
  const std::vector<int64_t> shape{static_cast<int64_t>(indices.size()), positions};
  // Pinned memory lets the copy run asynchronously.
  const auto options = at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda());
  Batch result{at::zeros(shape, options), at::full(shape, llama::kIgnoreLabel, options), 0};
  int64_t* tokens = result.tokens_BT.mutable_data_ptr<int64_t>();
  int64_t* labels = result.labels_BT.mutable_data_ptr<int64_t>();
  std::vector<int32_t> ids;
  if (mask_documents_) result.documents = documents(indices, positions);
  for (const uint64_t index : indices) {
    const Location at = locate(index);
    ids.resize(shards_[at.shard].length(at.index));
    shards_[at.shard].read(at.index, ids);
    const std::vector<uint8_t> is_target = targets(at);
    std::copy_n(ids.begin(), std::min<size_t>(ids.size(), static_cast<size_t>(positions)), tokens);
    for (size_t t = 1; t < ids.size(); ++t) {
      if (is_target[t] == 0) continue;
      labels[t - 1] = ids[t];
      ++result.num_targets;
    }
    tokens += positions;
    labels += positions;
  }
  if (!device.is_cpu()) result.targets = targets_of(result, device);
  result.tokens_BT = result.tokens_BT.to(device, /*non_blocking=*/true);
  result.labels_BT = result.labels_BT.to(device, /*non_blocking=*/true);
  return result;
}

TrainingData::TrainingData(const job::JobSpec& spec, const ModelLimits& limits, int group)
    : first_(is_interleaved(spec) ? static_cast<uint64_t>(group) : 0),
      stride_(is_interleaved(spec) ? static_cast<uint64_t>(spec.training.groups.count) : 1),
      dataset_(paths_of(spec, group), limits,
               static_cast<uint64_t>(spec.training.train_samples) * stride_,
               spec.training.document_mask) {
  if (size() > 0) return;
  throw Error(ErrorKind::kRejected,
              "the training data holds no sequence" +
                  (spec.training.groups.count > 1 ? " for group " + std::to_string(group + 1)
                                                  : std::string()));
}

uint64_t TrainingData::size() const {
  if (dataset_.size() <= first_) return 0;
  return (dataset_.size() - first_ + stride_ - 1) / stride_;
}

std::vector<uint64_t> TrainingData::in_dataset(std::vector<uint64_t> indices) const {
  for (uint64_t& index : indices) index = first_ + index * stride_;
  return indices;
}

}  // namespace xffl::train
