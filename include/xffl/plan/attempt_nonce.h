// The nonce of an attempt, which its job.json and report.json have.
#pragma once

#include <string>

#include "xffl/plan/round_plan.h"

namespace xffl::plan {

/// 32 hexadecimal digits. They depend on the run's secret: an old or foreign report cannot have the
/// nonce of a new attempt.
std::string attempt_nonce(const RunIdentity& identity, int round, const FacilityName& facility,
                          int attempt);

}  // namespace xffl::plan
