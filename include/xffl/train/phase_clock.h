// Where the time of a training step goes.
//
// On a CPU the steady clock measures. On a GPU events on the current stream do: to enter a phase
// records one and waits for nothing, and read() is called where the host has just waited anyway.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace xffl::train {

enum class StepPhase { kOther, kForward, kHead, kBackward, kNorm, kAdamw };

/// Sums over a step's micro-batches. The rest of a step (reading batches, waiting for other
/// pipeline stages, exchanges between groups) belongs to no phase.
struct PhaseSeconds {
  double forward = 0;   // embedding and blocks
  double head = 0;      // final norm, logits and cross-entropy
  double backward = 0;  // all gradients, and the wait for the rest of their reduction
  double norm = 0;      // of the gradients, for clipping
  double adamw = 0;

  PhaseSeconds& operator+=(const PhaseSeconds& other);
};

class PhaseClock {
 public:
  explicit PhaseClock(at::Device device);
  ~PhaseClock();

  /// The phase so far ends, `phase` begins.
  void enter(StepPhase phase);
  /// The phases that ended since the last call. On a GPU the host must have waited for the current
  /// stream after the last enter().
  PhaseSeconds read();

 private:
  class Marks;
  std::unique_ptr<Marks> marks_;
};

}  // namespace xffl::train
