// The phases of a step, for clocks.
#pragma once

#include <functional>

namespace xffl::llama {

enum class Phase {
  kForward,   // embedding and blocks
  kHead,      // the final norm, the logits and the cross-entropy
  kBackward,  // all gradients, the head's included
};

/// The computing thread calls it at the beginning of a phase: after all earlier work of the device,
/// before the phase's own work. Chunks of the head alternate between kHead and kBackward.
using PhaseHook = std::function<void(Phase)>;

}  // namespace xffl::llama
