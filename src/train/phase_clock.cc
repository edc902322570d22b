#include "phase_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace xffl::train {

void PhaseClock::enter(StepPhase phase) {
  if (!marks_.empty() && marks_.back().phase == phase) return;
  Mark mark{phase, {}, {}};
  if (device_.is_cuda()) {
    if (spare_.empty()) spare_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    mark.event = std::move(spare_.back());
    spare_.pop_back();
    mark.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  } else {
    mark.time = SteadyClock::now();
  }
  marks_.push_back(std::move(mark));
}

double PhaseClock::seconds_between(const Mark& begin, const Mark& end) const {
  if (begin.event) return begin.event->elapsedTime(*end.event) * 1e-3;
  return train::seconds_between(begin.time, end.time);
}

PhaseSeconds PhaseClock::read() {
  PhaseSeconds result;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    const auto phase = static_cast<size_t>(marks_[i].phase);
    if (phase < result.seconds.size())
      result.seconds[phase] += seconds_between(marks_[i], marks_[i + 1]);
    if (marks_[i].event) spare_.push_back(std::move(*marks_[i].event));
  }
  if (marks_.size() > 1) marks_.erase(marks_.begin(), marks_.end() - 1);
  return result;
}

}  // namespace xffl::train
