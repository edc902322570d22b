#include "learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace xffl::train {

double learning_rate(const job::TrainingSpec& training, int64_t step) {
  const job::Schedule& schedule = training.schedule;
  const double peak = training.learning_rate;
  if (step < schedule.warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  const int64_t total =
      schedule.total_steps > 0 ? schedule.total_steps : training.first_step + training.steps;
  const double length = static_cast<double>(std::max<int64_t>(1, total - schedule.warmup_steps));
  const double progress =
      std::clamp(static_cast<double>(step - schedule.warmup_steps) / length, 0.0, 1.0);
  double ratio = 1.0;
  if (schedule.kind == job::ScheduleKind::kLinear) ratio = 1.0 - progress;
  if (schedule.kind == job::ScheduleKind::kCosine)
    ratio = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (schedule.min_ratio + (1.0 - schedule.min_ratio) * ratio);
}

}  // namespace xffl::train
