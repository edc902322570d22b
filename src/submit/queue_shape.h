// The parts of a QueueManager's row, and the keys of its section, that are the same for all batch
// systems: for settings with the members nodes, tasks_per_node, time, warning, settle_time and
// command_timeout.
#pragma once

#include <algorithm>
#include <chrono>
#include <string_view>

#include "xffl/job/fields.h"
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

// The ranges of durations, in milliseconds.
inline constexpr double kSecond = 1000, kHour = 3600 * kSecond, kDay = 24 * kHour;

template <class Settings>
job::Field time_field(std::string_view help) {
  return job::field("time", &Settings::time, help, {.min = 60 * kSecond, .max = 365 * kDay});
}

template <class Settings>
job::Field warning_field() {
  return job::field(
      "warning", &Settings::warning,
      "the time before the walltime at which the trainer gets a signal to stop and save",
      {.max = 18 * kHour});
}

template <class Settings>
job::Field settle_time_field(std::string_view help) {
  return job::field("settle_time", &Settings::settle_time, help, {.max = kHour});
}

template <class Settings>
job::Field command_timeout_field(std::string_view help) {
  return job::field("command_timeout", &Settings::command_timeout, help,
                    {.min = kSecond, .max = kHour});
}

template <class Settings>
void require_warning_before_end(const Settings& settings, const SectionKeys& keys) {
  if (settings.warning >= settings.time)
    keys.problem("warning", "'warning' should be shorter than 'time', the walltime");
}

}  // namespace xffl::submit
