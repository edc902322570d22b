// The patience of the scheduler of this machine's processes, which tests shorten.
#pragma once

#include <chrono>
#include <memory>

#include "xffl/submit/scheduler.h"

namespace xffl::submit {

struct CancelTimeouts {
  std::chrono::milliseconds term{5000};    // from SIGTERM to SIGKILL
  std::chrono::milliseconds kill{10'000};  // after SIGKILL, which a process in state D ignores
};
std::unique_ptr<Scheduler> make_process_scheduler(const CancelTimeouts& timeouts);

}  // namespace xffl::submit
