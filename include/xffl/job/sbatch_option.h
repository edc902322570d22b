// Which options of Slurm's sbatch and srun a person may add to a job, for config/ and submit/.
#pragma once

#include <string>
#include <string_view>

namespace xffl::job {

/// Why `option` may not be added, as the end of a sentence; empty when it may. An option is
/// "--word" or "--word=value" without blanks, quotes or characters of a shell, so that it is one
/// word of a directive; neither one that xffl sets itself nor one that has a key of its own.
std::string refuse_sbatch_option(std::string_view option);
std::string refuse_srun_option(std::string_view option);

}  // namespace xffl::job
