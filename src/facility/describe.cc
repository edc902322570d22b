// The facility's activity as a text for users.
#include "xffl/base/log.h"
#include "xffl/facility/machine.h"

namespace xffl::facility {
namespace {

using std::chrono::seconds;
using submit::JobState;
using submit::JobStatus;

std::string text_of(seconds duration) {
  const auto count = duration.count();
  if (count < 120) return std::to_string(count) + " s";
  if (count < 7200) return std::to_string(count / 60) + " min";
  return std::to_string(count / 3600) + " h";
}

std::string text_of(const std::optional<JobStatus>& status) {
  if (!status) return "submitted";
  std::string text(submit::to_string(status->state));
  const std::string& why = status->reason.empty() ? status->native : status->reason;
  if (!why.empty() && why != text) text += " (" + log::printable(why, 100) + ")";
  if (status->state == JobState::kPending && status->starts_in)
    text += ", starts in " + text_of(*status->starts_in);
  if (status->state == JobState::kRunning && status->ends_in)
    text += ", time limit in " + text_of(*status->ends_in);
  return text;
}

std::string text_of(const FacilityMachine& machine) {
  return std::visit(Overloaded{
                        [](const Idle&) -> std::string { return "not started"; },
                        [&](const Pushing&) -> std::string {
                          return machine.known.attempts.back().pushed ? "pushed" : "pushing";
                        },
                        [](const Submitting&) -> std::string { return "submitting"; },
                        [](const Searching&) -> std::string { return "submission unknown"; },
                        [](const Polling& polling) { return text_of(polling.watch.status); },
                        [](const Ended& ended) { return text_of(ended.watch.status); },
                        [](const Fetching&) -> std::string { return "fetching"; },
                        [](const Closing& closing) -> std::string {
                          if (!closing.failure) return "cancelling the last attempt's jobs";
                          return "ending the attempt (" +
                                 log::printable(closing.failure->reason, 300) + ")";
                        },
                        [&](const Finished&) -> std::string {
                          return machine.known.accepted ? "accepted" : "missing";
                        },
                    },
                    machine.phase);
}

constexpr int kFailures = 5;            // in a row, with pauses of about a minute in all
constexpr int kUnknownSubmissions = 3;  // each with two searches for its job

}  // namespace

bool needs_user(const FacilityMachine& machine) {
  const bool submits = std::holds_alternative<Submitting>(machine.phase) ||
                       std::holds_alternative<Searching>(machine.phase);
  return machine.link.failures >= kFailures ||
         (submits && machine.memory.unknown_submissions >= kUnknownSubmissions);
}

std::string describe(const FacilityMachine& machine) {
  const std::string text = text_of(machine);
  const std::string& error = machine.link.last_error;
  if (machine.link.auth_required)
    return std::string(kAuthPause) + ", " + text + ": " + log::printable(error, 300);
  if (error.empty()) return text;
  return (needs_user(machine) ? std::string(kNeedsUser) + ": " : "") + text +
         ", retrying: " + log::printable(error, 300);
}

}  // namespace xffl::facility
