// What xffl.yaml says of a facility's Slurm, as submit/ takes it.
#pragma once

#include "xffl/config/experiment.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {

submit::SlurmSettings slurm_settings(const config::Slurm& slurm);

}  // namespace xffl::facility
