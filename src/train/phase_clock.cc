#include "phase_clock.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>
#include <vector>

#include "elapsed.h"

namespace xffl::train {
namespace {

double& seconds_of(PhaseSeconds& seconds, StepPhase phase, double& other) {
  switch (phase) {
    case StepPhase::kForward:
      return seconds.forward;
    case StepPhase::kHead:
      return seconds.head;
    case StepPhase::kBackward:
      return seconds.backward;
    case StepPhase::kNorm:
      return seconds.norm;
    case StepPhase::kAdamw:
      return seconds.adamw;
    case StepPhase::kOther:
      break;
  }
  return other;
}

}  // namespace

PhaseSeconds& PhaseSeconds::operator+=(const PhaseSeconds& other) {
  forward += other.forward;
  head += other.head;
  backward += other.backward;
  norm += other.norm;
  adamw += other.adamw;
  return *this;
}

// The starts of phases. Events are reused after they are read.
class PhaseClock::Marks {
 public:
  explicit Marks(at::Device device) : device_(device) {}

  void add(StepPhase phase) {
    if (!marks_.empty() && marks_.back().phase == phase) return;
    Mark mark{phase, {}, {}};
    if (device_.is_cuda()) {
      mark.event.emplace(take_event());
      mark.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    } else {
      mark.time = SteadyClock::now();
    }
    marks_.push_back(std::move(mark));
  }

  PhaseSeconds read() {
    PhaseSeconds seconds;
    double other = 0;
    for (size_t i = 0; i + 1 < marks_.size(); ++i) {
      seconds_of(seconds, marks_[i].phase, other) += seconds_between(marks_[i], marks_[i + 1]);
      if (marks_[i].event) spare_.push_back(std::move(*marks_[i].event));
    }
    if (marks_.size() > 1) marks_.erase(marks_.begin(), marks_.end() - 1);
    return seconds;
  }

 private:
  struct Mark {
    StepPhase phase;
    SteadyClock::time_point time;
    std::optional<c10::Event> event;
  };

  double seconds_between(const Mark& begin, const Mark& end) const {
    if (begin.event) return begin.event->elapsedTime(*end.event) * 1e-3;
    return train::seconds_between(begin.time, end.time);
  }

  c10::Event take_event() {
    if (spare_.empty()) return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }

  at::Device device_;
  std::vector<Mark> marks_;
  std::vector<c10::Event> spare_;
};

PhaseClock::PhaseClock(at::Device device) : marks_(std::make_unique<Marks>(device)) {}
PhaseClock::~PhaseClock() = default;
void PhaseClock::enter(StepPhase phase) { marks_->add(phase); }
PhaseSeconds PhaseClock::read() { return marks_->read(); }

}  // namespace xffl::train
