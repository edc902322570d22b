// What `sbatch --test-only` does not say: a walltime above the partition's limit is accepted by
// most controllers (EnforcePartLimits=NO), and the job then waits for ever (PartitionTimeLimit).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace xffl {

/// "2-00:00:00", "12:00:00", "30:00", "30" (minutes); nothing for "infinite" and what is no limit.
std::optional<std::chrono::seconds> slurm_time(std::string_view text);

/// The longest walltime that a job may have, by what `sinfo -h -o '%P %l'` says of `partitions`
/// (separated by commas; empty: the default one, marked '*'). Nothing when one of them has no
/// limit, or is not known.
std::optional<std::chrono::seconds> longest_walltime(std::string_view sinfo,
                                                     std::string_view partitions);

}  // namespace xffl
