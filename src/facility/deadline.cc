// The round's deadline, the time after its quorum, the longest outage and a departure: their
// evaluation, and their effect in each phase.
#include "step_in_progress.h"

namespace xffl::facility {

std::optional<Deadline> deadline(const FacilityPolicy& policy, const Now& now) {
  std::optional<Deadline> limit;
  const std::chrono::seconds from_submission = policy.round_deadline();
  if (from_submission.count() > 0 && now.since_first_submission)
    limit = {.left = Nanoseconds(from_submission) - *now.since_first_submission,
             .ends_attempts = policy.on_missing != config::OnMissing::kWait};
  if (policy.on_missing == config::OnMissing::kSkip && policy.quorum > 0 &&
      policy.quorum_grace.count() > 0 && now.since_quorum) {
    const Nanoseconds left = Nanoseconds(policy.quorum_grace) - *now.since_quorum;
    if (!limit || left < limit->left)
      limit = {.left = left, .ends_attempts = true, .after_quorum = true};
  }
  return limit;
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
  if (now_.left) return "it left the run: " + *now_.left;
  const auto limit = deadline(policy_, now_);
  if (limit && limit->is_up())
    return "no update before " +
           (limit->after_quorum
                ? "the round's end, " + std::to_string(policy_.quorum_grace.count()) +
                      " s after its quorum (policy.quorum_grace)"
                : "the round's deadline of " + std::to_string(policy_.round_deadline().count()) +
                      " s") +
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
