#include "training_data.h"

#include <filesystem>
#include <string>

#include "xffl/base/error.h"

namespace xffl::train {
namespace {

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
