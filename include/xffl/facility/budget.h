// Budgets of node-hours (`budget` of a facility and of the policy), compared before a submission.
#pragma once

#include <optional>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/history/spending.h"

namespace xffl::facility {

/// The reason why the facility's next job would exceed its budget or the run's: the jobs so far and
/// this job's whole walltime need more node-hours than allowed. None: the job may be submitted.
/// `reserved`: node-seconds of this job that `spending` has already. Pure.
std::optional<std::string> over_budget(const config::Experiment& experiment,
                                       const config::Facility& facility,
                                       const history::Spending& spending, double reserved = 0);

/// The text of a warning when the spending has reached the share `warn_at` of a budget; none
/// before. Pure.
std::optional<std::string> budget_warning(const config::Budget& budget, double node_seconds);

}  // namespace xffl::facility
