// Parses the output of sbatch, squeue and sacct, and trusts none of it. Pure functions.
//
// A submission counts as accepted only for a bare job id, a squeue row only when it has every
// field, and a state name that this version does not know gives JobState::kUnknown.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

struct Submission {
  enum class Kind {
    kAccepted,
    kRejected,  // the request is wrong; no job exists
    kDeferred,  // a temporary reason; no job exists
    kUnknown,   // a job may exist
  };
  Kind kind = Kind::kUnknown;
  std::string id;    // kAccepted only: digits
  std::string text;  // Slurm's message, printable, on one line
};
Submission read_submission(const remote::CommandResult& answer);

/// Classifies a failed sbatch by Slurm's error message `text` (src/common/slurm_errno.c, versions
/// 20 to 24); an unknown message gives kUnknown.
Submission::Kind classify_rejection(std::string_view text, int exit_code);

// The formats of squeue and sacct, and the line that ends a complete answer.
inline constexpr std::string_view kQueueFormat = "%A|%j|%T|%S|%L|%Z|%N|%r";
inline constexpr std::string_view kAccountingFields = "JobIDRaw,JobName,State,NodeList,WorkDir";
inline constexpr std::string_view kEndMark = "xffl-end";

struct QueueRow {
  std::string id, name, folder;
  JobStatus status;
  // False for a rejected submission, which Slurm shows for a while as a failed job without nodes.
  bool had_nodes = false;
};

/// Parses "<seconds since 1970>\n", rows of kQueueFormat, kEndMark. Malformed rows are skipped.
/// Empty when the clock or kEndMark is missing.
std::optional<std::vector<QueueRow>> read_queue(std::string_view text);
/// Parses rows of kAccountingFields and kEndMark. A job that has not ended is kUnknown: only squeue
/// is asked about running jobs.
std::optional<std::vector<QueueRow>> read_accounting(std::string_view text);

/// Parses the name of a job state; `reason` is that of a pending job.
JobStatus read_state(std::string_view text, std::string_view reason);

/// Parses the remaining walltime: "4-03:00:00", "59:59"; empty for UNLIMITED, NOT_SET and others.
std::optional<std::chrono::seconds> read_time_left(std::string_view text);

/// True for a Slurm job id: digits without a leading zero.
bool is_slurm_id(std::string_view text);

}  // namespace xffl::submit
