// The learning rate schedule over a federation's steps.
#pragma once

#include <cstdint>

#include "xffl/job/job_spec.h"

namespace xffl::train {

/// The rate of the 0-based global step: a warm-up of peak * step / warmup_steps, then a constant,
/// linear or cosine schedule from the peak to peak * min_ratio at total_steps and later. The
/// formulas are those of Hugging Face's get_*_schedule_with_warmup, so the first step of a warm-up
/// has the rate 0. total_steps 0 means the end of this job.
double learning_rate(const job::TrainingSpec& training, int64_t step);

}  // namespace xffl::train
