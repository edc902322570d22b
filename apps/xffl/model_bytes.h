// How large an experiment's models and updates are, by its model's shapes and its dtypes.
#pragma once

#include <cstdint>

#include "xffl/config/experiment.h"

namespace xffl {

struct ModelBytes {
  uint64_t published = 0;  // the global model as it travels; with LoRA the adapter
  uint64_t update = 0;     // what a facility sends back
  uint64_t master = 0;     // the coordinator's float32
  uint64_t adapted = 0;    // with LoRA: the model under it, sent once; else 0

  /// At a facility: the model and the update of a round, and a tenth for what is in flight.
  /// Checkpoints and kept optimizer states are not counted: what they need is the trainer's matter.
  uint64_t at_facility() const { return (published + update) / 10 * 11 + adapted; }
  /// Here: two global models with their masters while one is made of the other, and every update.
  uint64_t here(uint64_t num_facilities) const {
    return 2 * (master + published) + num_facilities * update + adapted;
  }
};

/// Reads the headers of the model's files; throws what ModelFolder throws.
ModelBytes model_bytes(const config::Experiment& experiment);

}  // namespace xffl
