// Server steps on single blocks of a model: the same arithmetic as server_step(), to check a
// published model by samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "xffl/aggregate/aggregate.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::aggregate {

// At most 128 Ki elements of a tensor.
struct SampledBlock {
  std::string tensor;
  uint64_t begin = 0, count = 0;  // elements
};

/// The blocks of a model's tensors, by index.
uint64_t num_blocks(const std::vector<checkpoint::TensorSpec>& tensors);
SampledBlock block_at(const std::vector<checkpoint::TensorSpec>& tensors, uint64_t index);
/// The bytes of the block in a model.
std::span<const std::byte> bytes_of(const checkpoint::ModelFolder& model,
                                    const SampledBlock& block);

/// The updates of a round. Reads without a check of hashes.
class SampledStep {
 public:
  /// `master`: the tensors of the float32 master. Throws as server_step() for inputs that it
  /// refuses.
  SampledStep(std::vector<Input> updates, const std::vector<checkpoint::TensorSpec>& master);
  ~SampledStep();

  /// Replaces `master`, the values of the block in the float32 master, by the values after the
  /// step. `rule` must have no state. Throws kRejected for a value that is not finite or out of
  /// range.
  void apply(const SampledBlock& block, bool deltas, const ServerRule& rule,
             std::span<float> master) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::aggregate
