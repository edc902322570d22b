// The sequences that a group of ranks trains on.
//
// With at least as many train_paths as groups, path i belongs to group i modulo the number of
// groups: a group then trains as a facility with these paths would. With fewer, the sequences of
// all paths are dealt: sequence i belongs to group i modulo the number of groups.
#pragma once

#include <cstdint>
#include <vector>

#include "xffl/job/job_spec.h"
#include "xffl/train/dataset.h"

namespace xffl::train {

class TrainingData {
 public:
  /// Of group `group` of spec.training.groups.count; at most its first train_samples sequences.
  /// Throws kRejected when the group has none, and what Dataset does.
  TrainingData(const job::JobSpec& spec, const ModelLimits& limits, int group);

  const Dataset& dataset() const { return dataset_; }
  /// Sequences of the group.
  uint64_t size() const;
  /// Where the group's sequences are in dataset().
  std::vector<uint64_t> in_dataset(std::vector<uint64_t> indices) const;

 private:
  uint64_t first_ = 0;   // the group's first sequence in the data set
  uint64_t stride_ = 1;  // to its next one
  Dataset dataset_;
};

}  // namespace xffl::train
