// Measures the phases of a training step.
//
// A CPU uses the steady clock. A GPU uses events on the current stream: enter() records an event
// without waiting, and the trainer calls read() after the host has waited for the stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace xffl::train {

enum class StepPhase { kOther, kForward, kHead, kBackward, kNorm, kAdamw };

/// Sums over a step's micro-batches. Other work of a step (reading batches, waiting for other
/// pipeline stages, exchanges between groups) belongs to no phase.
struct PhaseSeconds {
  double forward = 0;   // embedding and blocks
  double head = 0;      // final norm, logits and cross-entropy
  double backward = 0;  // gradients, and waiting for their reduction
  double norm = 0;      // gradient norm, for clipping
  double adamw = 0;

  PhaseSeconds& operator+=(const PhaseSeconds& other);
};

class PhaseClock {
 public:
  explicit PhaseClock(at::Device device);
  ~PhaseClock();

  /// Ends the current phase and begins `phase`.
  void enter(StepPhase phase);
  /// The phases that ended since the last call. With a GPU the host must have waited for the
  /// current stream after the last enter().
  PhaseSeconds read();

 private:
  class Marks;
  std::unique_ptr<Marks> marks_;
};

}  // namespace xffl::train
