// What Slurm's commands said, read without trust. Pure: nothing here talks to anybody.
//
// An exit status and a state that cannot be told apart from a lie are not used: a submission is
// accepted by a bare id only, a row of squeue counts when it has every field, and a word that this
// version does not know is an unknown state.
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
    kRefused,  // for good: the request is wrong, no job exists
    kBusy,     // for now: no job exists
    kInDoubt,  // a job may exist
  };
  Kind kind = Kind::kInDoubt;
  std::string id;    // of kAccepted: digits
  std::string text;  // Slurm's own, on one line, printable
};
Submission read_submission(const remote::CommandResult& answer);

/// What an sbatch that failed with `text` left behind, by Slurm's own words
/// (src/common/slurm_errno.c of its versions 20 to 24); words that are not known leave it in doubt.
Submission::Kind classify_refusal(std::string_view text, int exit_code);

// The fields that ask_queue() asks for, in its order, and the mark that ends a whole answer.
inline constexpr std::string_view kQueueFormat = "%A|%j|%T|%S|%L|%Z|%N|%r";
inline constexpr std::string_view kAccountingFields = "JobIDRaw,JobName,State,NodeList,WorkDir";
inline constexpr std::string_view kEndMark = "xffl-end";

struct QueueRow {
  std::string id, name, folder;
  JobStatus status;
  // A submission that Slurm refused stays visible as a failed job for a while: it had no nodes.
  bool had_nodes = false;
};

/// The answer "<seconds since 1970>\n", rows of kQueueFormat, kEndMark. Rows that are none are left
/// out. Empty when the answer as a whole is not one (no clock, no end).
std::optional<std::vector<QueueRow>> read_queue(std::string_view text);
/// Rows of kAccountingFields and kEndMark. Of jobs that are not over the status is kUnknown: what
/// squeue no longer knows cannot run, and what it knows it says itself.
std::optional<std::vector<QueueRow>> read_accounting(std::string_view text);

/// A state's word and the reason for it.
JobStatus read_state(std::string_view word, std::string_view reason);

/// "4-03:00:00", "59:59": what is left of the walltime; empty for UNLIMITED, NOT_SET and the like.
std::optional<std::chrono::seconds> read_time_left(std::string_view text);

/// Digits of a job's id.
bool is_slurm_id(std::string_view text);

}  // namespace xffl::submit
