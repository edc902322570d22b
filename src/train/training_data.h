// The sequences that a group of ranks trains on.
//
// With at least as many train_paths as groups, path i belongs to group i modulo the number of
// groups: a group then trains like a facility with these paths. With fewer paths, sequence i of all
// paths belongs to group i modulo the number of groups.
#pragma once

#include <cstdint>
#include <vector>

#include "xffl/job/job_spec.h"
#include "xffl/train/dataset.h"

namespace xffl::train {

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
