// The sizes of an experiment's models and updates, by its model's shapes and its dtypes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "xffl/config/experiment.h"

namespace xffl::facility {

struct ModelBytes {
  uint64_t published = 0;  // the global model as it is sent; with LoRA the adapter
  uint64_t update = 0;     // of one facility
  uint64_t master = 0;     // the coordinator's float32
  uint64_t adapted = 0;    // with LoRA: the model under it, sent once; else 0

  /// At a facility: the model and the update of a round, and a tenth for temporary files. Excludes
  /// checkpoints and kept optimizer states, whose sizes the trainer decides.
  uint64_t at_facility() const { return (published + update) / 10 * 11 + adapted; }
  /// The part of at_facility() that a job writes after its model was sent; with `unpacks` the job
  /// also writes the model, from differences.
  uint64_t for_job(bool unpacks) const {
    const uint64_t there = adapted + (unpacks ? 0 : published);
    return at_facility() - std::min(at_facility(), there);
  }
  /// Here: two global models with their masters (the old and the new one), and every update.
  uint64_t here(uint64_t num_facilities) const {
    return 2 * (master + published) + num_facilities * update + adapted;
  }
};

/// Reads the headers of the files of `model`, the experiment's or any global model of its runs;
/// with LoRA the model under the adapter. Errors as ModelFolder's.
ModelBytes model_bytes(const config::Experiment& experiment, const std::filesystem::path& model);

}  // namespace xffl::facility
