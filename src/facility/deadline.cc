// The round's deadline and the longest outage: their evaluation, and their effect in each phase.
#include "step_in_progress.h"

namespace xffl::facility {

std::optional<Deadline> deadline(const FacilityPolicy& policy, const Now& now) {
  const std::chrono::seconds limit = policy.round_deadline();
  if (limit.count() == 0 || !now.since_first_submission) return std::nullopt;
  return Deadline{.left = Nanoseconds(limit) - *now.since_first_submission,
                  .ends_attempts = policy.on_missing != config::OnMissing::kWait};
}

// The deadline and the longest outage hold in every phase, with three exceptions: the machine
// checks once more for a job's report, fetches a report that it has seen, and closes a failed
// attempt. When such an action fails after the deadline, the machine does not repeat the action.
bool StepInProgress::time_may_end_it(const Event& event) const {
  const bool no_answer =
      std::holds_alternative<Unreachable>(event) || std::holds_alternative<AuthRequired>(event);
  const bool nothing_new =
      std::holds_alternative<TimerFired>(event) || std::holds_alternative<Resumed>(event);
  return std::visit(
      Overloaded{[&](const Closing& closing) {
                   return !closing.failure || (no_answer && !best_effort(closing));
                 },
                 [&](const Fetching&) { return no_answer; },
                 [&](const Polling&) { return !nothing_new; },
                 [&](const Ended&) { return !nothing_new; }, [](const Finished&) { return false; },
                 [](const auto&) { return true; }},
      machine_.phase);
}

std::optional<std::string> StepInProgress::time_is_up() const {
  const std::string outage = std::to_string(policy_.max_outage.count()) + " s";
  const auto limit = deadline(policy_, now_);
  if (limit && limit->is_up())
    return "no update before the round's deadline of " +
           std::to_string(policy_.round_deadline().count()) + " s" +
           (link_.last_error.empty() ? "" : ": " + link_.last_error);
  if (link_.failures > 0 && now_.time - link_.failing_since > policy_.max_outage)
    return "not reachable for " + outage + ": " + link_.last_error;
  if (submission_is_unknown() && memory_.unknown_submissions > 1 && memory_.unknown_since &&
      now_.time - *memory_.unknown_since > policy_.max_outage)
    return "its scheduler answered no submission for " + outage + ": " + link_.last_error;
  return std::nullopt;
}

void StepInProgress::end_for_time(const std::string& reason) {
  wait_ = Nanoseconds(0);
  auto* closing = std::get_if<Closing>(&machine_.phase);
  if (!attempt_is_open()) return give_up(reason);
  if (closing) {
    closing->failure->reason += "; " + reason;
    if (closing->step == ClosingStep::kFinalPoll) closing->step = ClosingStep::kList;
  } else {
    close({.reason = reason});
    closing = &std::get<Closing>(machine_.phase);
  }
  closing->failure->fatal = closing->failure->best_effort_cleanup = true;
  if (attempt().submit_intended && !attempt().cancel_intended) record(history::CancelIntended{});
}

}  // namespace xffl::facility
