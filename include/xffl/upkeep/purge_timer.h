// Keeps what lies at facilities that purge young for as long as a run goes on: one whose update has
// come may wait for weeks until another's does, and its next job needs its model and the
// optimizer's state.
#pragma once

#include <stop_token>
#include <thread>

namespace xffl::facility {
struct Context;
}

namespace xffl::upkeep {

class PurgeTimer {
 public:
  /// Does nothing where no facility purges. `context` must outlive it.
  explicit PurgeTimer(facility::Context& context);
  /// Interrupts what is under way.
  ~PurgeTimer();

 private:
  std::jthread thread_;
};

}  // namespace xffl::upkeep
