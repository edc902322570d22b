// The words of Slurm: why it refuses a job, and what becomes of one.
#include <algorithm>
#include <array>
#include <span>

#include "slurm_answers.h"
#include "xffl/base/log.h"

namespace xffl::submit {
namespace {

using Texts = std::span<const std::string_view>;

// The request may have reached the controller: a job may exist or yet appear.
constexpr auto kInDoubt = std::to_array<std::string_view>({
    "timed out",
    "unexpected message",
    "zero bytes were transmitted",
    "connection reset",
    "broken pipe",
    "communication connection failure",
    "unspecified error",
});

// A limit on how many jobs wait: it passes by itself.
constexpr auto kSubmitLimits = std::to_array<std::string_view>({
    "maxsubmit",
    "grpsubmit",
    "submit jobs limit",
    "submitjobslimit",
});

// The request itself is wrong.
constexpr auto kPermanent = std::to_array<std::string_view>({
    "invalid partition",
    "invalid account",
    "invalid qos",
    "invalid feature",
    "invalid wckey",
    "invalid generic resource",
    "invalid trackable resource",
    "invalid license",
    "invalid job array",
    "invalid user id",
    "invalid group id",
    "invalid cluster",
    "invalid --",
    "invalid reservation",
    "invalid node name",
    "invalid burst buffer",
    "invalid directive",
    "invalid numeric",
    "invalid time",
    "invalid dependency",
    "requested reservation is invalid",
    "requested time limit is invalid",
    "requested node configuration is not available",
    "node count specification invalid",
    "memory specification can not be satisfied",
    "cpu count per node can not be satisfied",
    "cpu count specification invalid",
    "more processors requested than permitted",
    "access/permission denied",
    "user's group not permitted",
    "not permitted to use this",
    "access denied to requested",
    "job violates accounting/qos policy",
    "too many",
    "too long",
    "unrecognized option",
    "unrecognised option",
    "unknown option",
    "requires an argument",
    "batch script contains only whitespace",
    "batch script contains dos line breaks",
    "does not look like a batch script",
    "batch script is empty",
    "script is empty",
    "specification is invalid",
    "gres option unsupported",
    "missing or invalid",
    "job size specification",
    "no account specified",
    "no partition specified",
    "is not valid",
    "unable to open file",
    "job dependency problem",
});

// Nobody took the request, or it was sent back for a reason that passes.
constexpr auto kPassing = std::to_array<std::string_view>({
    "unable to contact slurm controller",
    "slurm controller in standby mode",
    "slurm backup controller in standby",
    "slurmctld running in standby",
    "resource temporarily unavailable",
    "temporarily unable to accept job",
    "invalid authentication credential",
    "protocol authentication error",
    "authentication failure",
    "munge encode failed",
    "munge decode failed",
    "auth_g_create",
    "connection refused",
    "configuration source",
    "required partition not available",
    "requested partition configuration not available now",
    "requested operation is presently disabled",
    "requested nodes are busy",
    "system is in maintenance",
    "cannot allocate memory",
    "fork failed",
    "no space left",
    "error writing script",
    "error creating file",
});

bool holds(std::string_view text, Texts any) {
  return std::any_of(any.begin(), any.end(), [&](std::string_view one) {
    return text.find(one) != std::string_view::npos;
  });
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

struct Word {
  std::string_view word;
  JobState state;
  EndCause cause = EndCause::kOrdinary;
};

constexpr std::array kWords = std::to_array<Word>({
    {"PENDING", JobState::kPending},
    {"CONFIGURING", JobState::kPending},
    {"POWER_UP_NODE", JobState::kPending},
    {"REQUEUED", JobState::kPending},
    {"REQUEUE_FED", JobState::kPending},
    {"REQUEUE_HOLD", JobState::kHeld},
    {"RESV_DEL_HOLD", JobState::kHeld},
    {"SPECIAL_EXIT", JobState::kHeld},
    {"RUNNING", JobState::kRunning},
    {"COMPLETING", JobState::kRunning},
    {"RESIZING", JobState::kRunning},
    {"SIGNALING", JobState::kRunning},
    {"STAGE_OUT", JobState::kRunning},
    {"STOPPED", JobState::kRunning},
    {"SUSPENDED", JobState::kRunning},
    {"UPDATE_DB", JobState::kRunning},
    {"COMPLETED", JobState::kEnded},
    {"FAILED", JobState::kEnded},
    {"DEADLINE", JobState::kEnded},
    {"TIMEOUT", JobState::kEnded, EndCause::kWalltime},
    {"OUT_OF_MEMORY", JobState::kEnded, EndCause::kOutOfMemory},
    {"NODE_FAIL", JobState::kEnded, EndCause::kInfrastructure},
    {"BOOT_FAIL", JobState::kEnded, EndCause::kInfrastructure},
    {"LAUNCH_FAILED", JobState::kEnded, EndCause::kInfrastructure},
    {"RECONFIG_FAIL", JobState::kEnded, EndCause::kInfrastructure},
    {"PREEMPTED", JobState::kEnded, EndCause::kInfrastructure},
    {"CANCELLED", JobState::kCancelled},
});

// Reasons of a waiting job that no waiting ends, in lower case without separators.
constexpr auto kHolds = std::to_array<std::string_view>({
    "jobheld",
    "jobholdmaxrequeue",
    "requeuedheld",
    "dependencyneversatisfied",
    "badconstraints",
    "partitiontimelimit",
    "partitionnodelimit",
    "partitionconfig",
    "invalidaccount",
    "invalidqos",
    "accountnotallowed",
    "qosnotallowed",
    "reservationdeleted",
    "maxwalldurationperjob",
    "maxcpuminutesperjob",
    "maxtresminutesperjob",
    "maxnodeperjob",
    "maxcpuperjob",
    "maxgresperjob",
    "maxcpupernode",
    "mincpu",
    "mingres",
    "minmemory",
    "minnode",
    "systemfailure",
    "jobarraytasklimit",
    "burstbufferstageinfailed",
    "grpcpuminutes",
    "grpbillingminutes",
    "grpgresminutes",
});

bool is_held(std::string_view reason) {
  std::string squeezed;
  for (const char c : lower_case(reason))
    if (c >= 'a' && c <= 'z') squeezed += c;
  return holds(squeezed, kHolds);
}

}  // namespace

Submission::Kind classify_refusal(std::string_view text, int exit_code) {
  const std::string lower = lower_case(text);
  if (exit_code == 126 || exit_code == 127) return Submission::Kind::kRefused;  // no sbatch there
  if (holds(lower, kInDoubt)) return Submission::Kind::kInDoubt;
  if (holds(lower, kSubmitLimits)) return Submission::Kind::kBusy;
  if (holds(lower, kPermanent)) return Submission::Kind::kRefused;
  if (holds(lower, kPassing)) return Submission::Kind::kBusy;
  return Submission::Kind::kInDoubt;
}

JobStatus read_state(std::string_view word, std::string_view reason) {
  JobStatus status;
  status.native = log::printable(word, 64);
  if (reason != "None") status.reason = log::printable(reason, 200);
  const std::string_view first = word.substr(0, word.find_first_of(" +"));  // "CANCELLED by 1000"
  const auto known = std::find_if(kWords.begin(), kWords.end(),
                                  [&](const Word& each) { return each.word == first; });
  if (known == kWords.end()) return status;
  status.state = known->state;
  status.cause = known->cause;
  status.is_ending = first == "COMPLETING";
  if (status.state == JobState::kPending && is_held(reason)) status.state = JobState::kHeld;
  return status;
}

}  // namespace xffl::submit
