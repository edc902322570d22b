// The learning rate over a federation's steps.
#pragma once

#include <cstdint>

#include "xffl/job/job_spec.h"

namespace xffl::train {

/// The rate of the 0-based global step: warm-up peak * step / warmup_steps, then constant, linear
/// or cosine decay from the peak to peak * min_ratio at total_steps and after it; the formulas of
/// Hugging Face's get_*_schedule_with_warmup, so with a warm-up the very first step has the rate 0.
/// total_steps 0 means the end of this job.
double learning_rate(const job::TrainingSpec& training, int64_t step);

}  // namespace xffl::train
