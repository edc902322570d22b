// The parts of a QueueManager's row for settings with the members nodes, tasks_per_node, time and
// warning.
#pragma once

#include <algorithm>
#include <chrono>

#include "xffl/submit/queue_manager.h"

namespace xffl::submit {

template <class Settings>
JobShape shape_of(const QueueSettings& settings, int /*world_size*/) {
  const auto& values = settings.as<Settings>();
  return {.nodes = values.nodes,
          .tasks_per_node = values.tasks_per_node,
          .walltime = values.time,
          .warning = values.warning};
}

template <class Settings>
void shorten_to(QueueSettings& settings, int nodes, std::chrono::seconds walltime) {
  auto& values = settings.as<Settings>();
  values.nodes = std::min(values.nodes, nodes);
  values.time = std::min(values.time, walltime);
  values.warning = std::min<std::chrono::seconds>(values.warning, values.time / 2);
}

}  // namespace xffl::submit
