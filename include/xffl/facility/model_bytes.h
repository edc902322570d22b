// How large an experiment's models and updates are, by its model's shapes and its dtypes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "xffl/config/experiment.h"

namespace xffl::facility {

struct ModelBytes {
  uint64_t published = 0;  // the global model as it travels; with LoRA the adapter
  uint64_t update = 0;     // what a facility sends back
  uint64_t master = 0;     // the coordinator's float32
  uint64_t adapted = 0;    // with LoRA: the model under it, sent once; else 0

  /// At a facility: the model and the update of a round, and a tenth for what is in flight.
  /// Checkpoints and kept optimizer states are not counted: what they need is the trainer's matter.
  uint64_t at_facility() const { return (published + update) / 10 * 11 + adapted; }
  /// ... what of it a job has yet to write once its model was sent; with `unpacks` it makes that
  /// itself, of differences.
  uint64_t for_job(bool unpacks) const {
    const uint64_t there = adapted + (unpacks ? 0 : published);
    return at_facility() - std::min(at_facility(), there);
  }
  /// Here: two global models with their masters while one is made of the other, and every update.
  uint64_t here(uint64_t num_facilities) const {
    return 2 * (master + published) + num_facilities * update + adapted;
  }
};

/// Reads the headers of the files of `model`, the experiment's or any global model of its runs;
/// with LoRA that under the adapter. Throws what ModelFolder throws.
ModelBytes model_bytes(const config::Experiment& experiment, const std::filesystem::path& model);

}  // namespace xffl::facility
