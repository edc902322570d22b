// The sizes of an experiment's models and updates, from the model's shapes and the experiment's
// dtypes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "xffl/config/experiment.h"

namespace xffl::facility {

struct ModelBytes {
  uint64_t published = 0;  // the global model as sent; with LoRA the adapter
  uint64_t update = 0;     // one facility's update
  uint64_t master = 0;     // the coordinator's float32 master, with the server optimizer's state
  uint64_t adapted = 0;    // with LoRA: the model under the adapter, sent once; else 0

  /// The space that a round needs at a facility: the model, the update, and a tenth more for
  /// temporary files. Excludes checkpoints and kept optimizer states, whose sizes the trainer
  /// decides.
  uint64_t at_facility() const { return (published + update) / 10 * 11 + adapted; }
  /// The part of at_facility() that a job writes after the push of its model. With `unpacks` the
  /// job also writes the model, which it makes from differences.
  uint64_t for_job(bool unpacks) const {
    const uint64_t there = adapted + (unpacks ? 0 : published);
    return at_facility() - std::min(at_facility(), there);
  }
  /// The space that a round needs on this machine: the old and the new global model with their
  /// masters, and all updates.
  uint64_t here(uint64_t num_facilities) const {
    return 2 * (master + published) + num_facilities * update + adapted;
  }
  /// On this machine with the models, masters and updates of so many rounds.
  uint64_t on_disk(int models, int update_rounds, int masters, uint64_t num_facilities) const {
    return static_cast<uint64_t>(models) * published + static_cast<uint64_t>(masters) * master +
           static_cast<uint64_t>(update_rounds) * num_facilities * update + adapted;
  }
};

/// Reads the headers of the files of `model`: the experiment's model or a global model of its runs,
/// with LoRA the model under the adapter. Throws as ModelFolder.
ModelBytes model_bytes(const config::Experiment& experiment, const std::filesystem::path& model);

}  // namespace xffl::facility
