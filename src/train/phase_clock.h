// Elapsed time, and the phases of a training step.
//
// A CPU uses the steady clock. A GPU uses events on the current stream: enter() records an event
// without waiting, and the trainer calls read() after the host has waited for the stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

namespace xffl::train {

using SteadyClock = std::chrono::steady_clock;

inline double seconds_between(SteadyClock::time_point begin, SteadyClock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
inline double seconds_since(SteadyClock::time_point begin) {
  return seconds_between(begin, SteadyClock::now());
}

/// The phases of a step: embedding and blocks; final norm, logits and cross-entropy; gradients, and
/// waiting for their reduction; the gradient norm, for clipping; AdamW. Other work (reading
/// batches, waiting for other pipeline stages, exchanges between groups) belongs to no phase.
enum class StepPhase { kForward, kHead, kBackward, kNorm, kAdamw, kOther };
inline constexpr std::array<const char*, 5> kPhaseNames{"forward", "head", "backward", "norm",
                                                        "adamw"};

/// Sums over a step's micro-batches, of the phases before kOther.
struct PhaseSeconds {
  std::array<double, kPhaseNames.size()> seconds{};

  double operator[](StepPhase phase) const { return seconds.at(static_cast<size_t>(phase)); }
  PhaseSeconds& operator+=(const PhaseSeconds& other) {
    for (size_t i = 0; i < seconds.size(); ++i) seconds[i] += other.seconds[i];
    return *this;
  }
};

class PhaseClock {
 public:
  explicit PhaseClock(at::Device device) : device_(device) {}

  /// Ends the current phase and begins `phase`.
  void enter(StepPhase phase);
  /// The phases that ended since the last call. With a GPU the host must have waited for the
  /// current stream after the last enter().
  PhaseSeconds read();

 private:
  // The start of a phase. Events are reused after they are read.
  struct Mark {
    StepPhase phase;
    SteadyClock::time_point time;
    std::optional<c10::Event> event;
  };
  double seconds_between(const Mark& begin, const Mark& end) const;

  at::Device device_;
  std::vector<Mark> marks_;
  std::vector<c10::Event> spare_;
};

}  // namespace xffl::train
