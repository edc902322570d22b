// The commands that run at a facility with Slurm, and the parsers of their output. Pure functions.
//
// The parsers trust no output. A submission counts as accepted only for a bare job id, and a squeue
// row counts only with every field. A state name that this version does not know gives
// JobState::kUnknown.
//
// Kept allocations: a job that has reported keeps its nodes for the facility's next attempt. The
// job and the coordinator communicate through the name of one file in the attempt's folder,
// stay.<state>. Each side changes the state by renaming the file, so only one of two renames
// succeeds. The file is empty.
//
//   planned   written by the job before it trains: the job will offer its allocation
//   offered   written by the job after its report: the allocation waits for the next attempt
//   taken     written by the coordinator: the job runs job.sh of the next attempt's folder
//   closed    written by either side: the job ends
//
// The journal names the job that owns the allocation. The job id in claim/owner, beside the file,
// can contradict the journal but not replace the journal.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "queue_answers.h"
#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

/// The sbatch command. Its input is `script`; it submits nothing when only a part arrives.
std::vector<std::string> submit_command(const std::vector<std::string>& options,
                                        std::string_view script, bool test_only);
/// The command that prints the clock, then this user's jobs of `names` in any state, for
/// read_queue(). An empty `cluster` is the local cluster.
std::vector<std::string> queue_command(const std::vector<std::string>& names,
                                       const std::string& cluster);
/// The command that prints the accounting's jobs of `names` in the last 30 days, for
/// read_accounting().
std::vector<std::string> accounting_command(const std::vector<std::string>& names,
                                            const std::string& cluster);
/// The command that prints every start of the jobs of these ids, for read_starts().
std::vector<std::string> starts_command(const std::vector<std::string>& ids,
                                        const std::string& cluster);
/// The command that cancels this user's job `id` if the job has that name.
std::vector<std::string> cancel_command(const std::string& id, const std::string& name,
                                        const std::string& cluster);

Submission read_submission(const remote::CommandResult& answer);

/// Classifies a failed sbatch by Slurm's error message `text` (src/common/slurm_errno.c, versions
/// 20 to 24); an unknown message gives kUnknown.
Submission::Kind classify_rejection(std::string_view text, int exit_code);

/// Parses "<seconds since 1970>\n", rows, and the end mark. Skips blank lines and the headings of
/// clusters. Empty when the clock or the end mark is missing, when another line is no row, or when
/// the answer has more than 10,000 lines.
std::optional<std::vector<QueueRow>> read_queue(std::string_view text);
/// Parses rows and the end mark. A job that has not ended is kUnknown: the scheduler asks only
/// squeue about running jobs.
std::optional<std::vector<QueueRow>> read_accounting(std::string_view text);

/// Parses rows and the end mark; leaves out jobs that did not start, and energies that no node can
/// have used.
std::optional<std::vector<NamedStart>> read_starts(std::string_view text);

/// Parses the name of a job state; `reason` is the reason of a pending job.
JobStatus read_state(std::string_view text, std::string_view reason);

/// Parses the remaining walltime: "4-03:00:00", "59:59"; empty for UNLIMITED, NOT_SET and others.
std::optional<std::chrono::seconds> read_time_left(std::string_view text);

/// Parses lines "<partition> <walltime>" of sinfo. Returns the longest walltime of `partitions`
/// (separated by commas; empty: the default partition, marked '*'). Empty when one of the
/// partitions is unlimited or sinfo lists none of the partitions.
std::optional<std::chrono::seconds> read_longest_walltime(std::string_view text,
                                                          std::string_view partitions);

/// True for a Slurm job id: digits without a leading zero.
bool is_slurm_id(std::string_view text);

enum class TakeResult {
  kNone,     // the job keeps no allocation and plans none
  kPlanned,  // the job has not offered its allocation yet
  kTaken,    // by this command or an earlier command
};

/// The command that writes its input, `script`, to job.sh in `next`, then takes the allocation. It
/// takes nothing when only a part of the script arrives. With `wait` a planned allocation stays
/// planned; without `wait` the command closes a planned allocation.
std::vector<std::string> take_command(const KeptAllocation& kept, const RemotePath& next,
                                      std::string_view script, bool wait);
/// Parses the output of take_command(). Throws kRemote for any other output: the command may have
/// taken the allocation.
TakeResult read_take_result(const remote::CommandResult& result);
/// The command that closes a planned or offered allocation; prints nothing.
std::vector<std::string> release_command(const KeptAllocation& kept);
/// The file that exists if and only if the coordinator has taken the allocation.
RemotePath taken_file(const KeptAllocation& kept);

}  // namespace xffl::submit
