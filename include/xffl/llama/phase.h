// The parts of a step that a model works through, told to clocks.
#pragma once

#include <functional>

namespace xffl::llama {

enum class Phase {
  kForward,   // embedding and blocks
  kHead,      // the final norm, the logits and the cross-entropy
  kBackward,  // all gradients, those of the head among them
};

/// Called when a phase begins, by the thread that computes: behind all work given to the device
/// before, ahead of the phase's own. Chunks of the head alternate between kHead and kBackward.
using PhaseHook = std::function<void(Phase)>;

}  // namespace xffl::llama
