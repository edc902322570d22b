#include "xffl/submit/scheduler.h"

#include <algorithm>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

constexpr QueueManager kQueueManagers[] = {
    {.name = "process",
     .this_machine = true,
     .make = [](SlurmSettings, std::shared_ptr<remote::Session>,
                Clock&) -> std::shared_ptr<Scheduler> { return make_process_scheduler(); },
     .check = nullptr},
    {.name = "slurm", .this_machine = false, .make = make_slurm_scheduler, .check = test_only},
};

}  // namespace

std::string_view to_string(JobState state) {
  constexpr std::string_view kNames[] = {"unknown", "pending", "held",
                                         "running", "ended",   "cancelled"};
  return kNames[static_cast<size_t>(state)];
}

std::string_view to_string(EndCause cause) {
  constexpr std::string_view kNames[] = {"ordinary", "infrastructure", "walltime", "out of memory"};
  return kNames[static_cast<size_t>(cause)];
}

std::span<const QueueManager> queue_managers() { return kQueueManagers; }

const QueueManager& queue_manager(std::string_view name) {
  std::string known;
  for (const QueueManager& each : kQueueManagers) {
    if (each.name == name) return each;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  throw Error(ErrorKind::kConfig,
              "no queue manager is named '" + log::printable(name, 100) + "'; there are: " + known);
}

}  // namespace xffl::submit
