// Kept allocations: a job that has reported keeps its nodes for the facility's next attempt.
//
// The job and the coordinator communicate through the name of one file in the attempt's folder,
// stay.<state>. Each side changes the state by renaming the file, so only one of two renames
// succeeds. The file is empty.
//
//   planned   written by the job before it trains: the job will offer its allocation
//   offered   written by the job after its report: the allocation waits for the next attempt
//   taken     written by the coordinator: the job runs job.sh of the next attempt's folder
//   closed    written by either side: the job ends
//
// The journal says which job owns the allocation. The job id in claim/owner, beside the file, can
// only contradict the journal, not replace it.
#pragma once

#include <string>
#include <vector>

#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

enum class TakeResult {
  kNone,     // no allocation is kept, or will be
  kPlanned,  // the job has not offered its allocation yet
  kTaken,    // by this command or an earlier one
};

/// Writes stdin to job.sh in `next`, then takes the allocation. With `wait` a planned allocation
/// stays planned; without, it is closed.
std::vector<std::string> take_command(const KeptAllocation& kept, const RemotePath& next,
                                      bool wait);
/// Parses the output of take_command(). Throws kRemote for any other output: the allocation may
/// have been taken.
TakeResult read_take_result(const remote::CommandResult& result);
/// Closes an allocation that is planned or offered; prints nothing.
std::vector<std::string> release_command(const KeptAllocation& kept);
/// The file that exists if and only if the allocation was taken.
RemotePath taken_file(const KeptAllocation& kept);

}  // namespace xffl::submit
