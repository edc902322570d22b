// Parts that the schedulers of several queue managers share: the framing of commands and answers,
// the rows of a queue, and the classes of answers to a submission. Pure functions.
//
// The parsers trust no output. An answer counts only with its end mark, and an unknown message
// leaves the outcome of a submission unknown.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/remote/session.h"
#include "xffl/submit/accounting.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

/// The line that ends a complete answer.
inline constexpr std::string_view kEndMark = "xffl-end";
/// The lines of one answer at most.
inline constexpr size_t kMaxAnswerLines = 10'000;

/// The words of `env` without `variables`, in the C locale; a command follows.
std::vector<std::string> clean_environment(std::span<const std::string_view> variables);
void append(std::vector<std::string>& argv, std::vector<std::string> more);
/// Appends a shell that runs `argv` with its own input, the script. The shell runs nothing when
/// only a part of the script arrives, and creates files for this user only.
void append_submission(std::vector<std::string>& argv, std::string_view script,
                       std::vector<std::string> submit);

/// The words of options such as "-l h_rt=60": each option is one word or several with blanks.
std::vector<std::string> words_of(const std::vector<std::string>& options);
/// Throws kConfig, with `key` of xffl.yaml, unless `value` can be one word of a directive of a job
/// script: no blanks, quotes or characters of a shell, and no '-' first.
void check_directive_word(std::string_view key, std::string_view value);

/// The lines before kEndMark, without newlines; empty when the text does not end with kEndMark or
/// has more than `max_lines` lines.
std::optional<std::vector<std::string_view>> lines_of(std::string_view text,
                                                      size_t max_lines = kMaxAnswerLines);
/// The first line of an answer that `date +%s` begins: the facility's clock, in seconds since 1970.
std::optional<int64_t> read_queue_clock(std::string_view text);

/// A whole, not negative number; empty for any other text.
std::optional<int64_t> read_integer(std::string_view text);
/// Seconds since 1970 of "2026-11-25T05:48:59", in UTC.
std::optional<int64_t> read_iso_time(std::string_view text);
/// Seconds since 1970 of "Wed Nov 25 05:48:59 2026", in UTC.
std::optional<int64_t> read_ctime(std::string_view text);
std::string_view without_blanks(std::string_view text);
bool contains_any(std::string_view text, std::span<const std::string_view> parts);
/// Printable and on one line, at most 500 bytes.
std::string one_line(std::string text);
/// "exit status 1: <message>".
std::string failure_of(const remote::CommandResult& answer);
/// True for a job name that is one plain word.
bool is_plain_name(std::string_view name);
/// True for the exit status of a shell that cannot start a command.
bool is_no_command(int exit_code);
/// True for digits without a leading zero, 18 at most.
bool is_decimal_id(std::string_view text);

struct Submission {
  enum class Kind {
    kAccepted,
    kRejected,  // the request is wrong; no job exists
    kDeferred,  // a temporary reason; no job exists
    kUnknown,   // a job may exist
  };
  Kind kind = Kind::kUnknown;
  std::string id;    // kAccepted only
  std::string text;  // the queue manager's message, printable, on one line
};
/// The message of a failed submission, printable and on one line; never empty.
std::string submission_message(const remote::CommandResult& answer);
/// True for a message of the login node itself, such as an exhausted limit: a job may exist.
bool is_login_node_failure(std::string_view lower_case_message);

// The parts of messages that classify a queue manager's rejection, in lower case.
struct RejectionWords {
  std::span<const std::string_view> unknown;    // the request may have arrived
  std::span<const std::string_view> temporary;  // it did not arrive, or a limit passes by itself
  std::span<const std::string_view> permanent;  // errors in the request itself
};
/// Classifies the message of a failed submission; an unknown message gives kUnknown. A temporary
/// reason wins over a permanent one: a retry is harmless.
Submission::Kind classify_rejection(std::string_view text, int exit_code,
                                    const RejectionWords& words);
/// The submission that an answer stands for that is no bare id. A command has rejected nothing when
/// it reports success, or when one line of its output is an id: a site's wrapper may fail after the
/// submission.
Submission rejected_submission(const remote::CommandResult& answer, const RejectionWords& words,
                               const std::function<bool(std::string_view line)>& is_id);
/// Throws kConfig, kBusy or kRemote for a submission that was not accepted.
[[noreturn]] void throw_rejected(std::string_view title, const Submission& submission,
                                 const std::string& name);

struct QueueRow {
  std::string id, name, folder;  // an empty folder: the answer does not hold it
  JobStatus status;
  // False for a rejected submission, which Slurm shows for a while as a failed job without nodes.
  bool had_nodes = false;
};

struct NamedStart {
  std::string name;  // the job's
  AccountedStart start;
};

}  // namespace xffl::submit
