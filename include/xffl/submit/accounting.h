// What a scheduler's accounting has on record of a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "xffl/base/names.h"

namespace xffl::submit {

// A start of a job. A requeued job has several, with one id. Times are seconds since 1970 by the
// facility's clock.
struct AccountedStart {
  JobId job;
  std::string state;  // the scheduler's own name
  int64_t start = 0;
  std::optional<int64_t> end;  // absent: it runs, or its end is not on record yet
  int nodes = 0;
  std::optional<int64_t> energy_joules;  // of all nodes; absent: not measured
  std::optional<double> billing;         // the site's units for each hour; absent: none
  bool operator==(const AccountedStart&) const = default;
};

}  // namespace xffl::submit
