#include "attempt_budget.h"

#include <algorithm>

namespace xffl::facility {

std::optional<std::string> spent_budget(const Rules& rules, const history::FacilityState& known) {
  int charged = 0, others = 0;
  int64_t most_steps = 0;
  for (const history::Attempt& attempt : known.attempts) {
    const bool went_on = attempt.steps > most_steps;  // such a training may take many jobs
    most_steps = std::max(most_steps, attempt.steps);
    if (attempt.number <= known.attempts_before_resume || went_on) continue;
    ++(attempt.charged ? charged : others);
  }
  const auto spent = [&](const std::string& budget) {
    return "no attempt left (" + budget + "); the last one: " + *known.attempts.back().failure;
  };
  if (charged >= rules.max_attempts)
    return spent("policy.max_attempts is " + std::to_string(rules.max_attempts));
  if (others > rules.rerun_budget)
    return spent("policy.rerun_budget is " + std::to_string(rules.rerun_budget));
  return std::nullopt;
}

}  // namespace xffl::facility
