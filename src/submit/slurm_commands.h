// The commands of Slurm that are run at a facility, as argument vectors.
//
// They run without the variables that change what they do or show (SQUEUE_STATES, SBATCH_WAIT,
// ...), which a log-in shell may set, and in the C locale.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace xffl::submit {

/// sbatch of the script on its stdin.
std::vector<std::string> submit_command(const std::vector<std::string>& options, bool test_only);
/// The clock, then this user's jobs of those names in any state (kQueueFormat), then kEndMark.
/// `cluster` empty: the local one.
std::vector<std::string> queue_command(const std::vector<std::string>& names,
                                       const std::string& cluster);
/// What accounting knows of jobs of those names in the last 30 days, then kEndMark.
std::vector<std::string> accounting_command(const std::vector<std::string>& names,
                                            const std::string& cluster);
/// Ends this user's job of that id, if it has that name.
std::vector<std::string> cancel_command(const std::string& id, const std::string& name,
                                        const std::string& cluster);

}  // namespace xffl::submit
