#include "xffl/submit/queue_manager.h"

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/submit/flux.h"
#include "xffl/submit/grid_engine.h"
#include "xffl/submit/pbs.h"
#include "xffl/submit/scheduler.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {

std::span<const QueueManager* const> queue_managers() {
  static const QueueManager* const managers[] = {
      &process_queue_manager(), &slurm_queue_manager(), &grid_engine_queue_manager(),
      &pbs_queue_manager(),     &flux_queue_manager(),
  };
  return managers;
}

const QueueManager& queue_manager(std::string_view name) {
  std::string known;
  for (const QueueManager* each : queue_managers()) {
    if (each->name == name) return *each;
    known += (known.empty() ? "" : ", ") + std::string(each->name);
  }
  throw Error(ErrorKind::kConfig,
              "no queue manager is named '" + log::printable(name, 100) + "'; there are: " + known);
}

}  // namespace xffl::submit
