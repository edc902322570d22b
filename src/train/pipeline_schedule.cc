#include "pipeline_schedule.h"

#include <algorithm>

namespace xffl::train {

int64_t max_in_flight(job::PipelineSchedule schedule, int stage, int num_stages,
                      int64_t num_micro_batches) {
  if (num_stages == 1) return std::min<int64_t>(1, num_micro_batches);
  if (schedule == job::PipelineSchedule::kGpipe) return num_micro_batches;
  return std::min<int64_t>(num_stages - stage, num_micro_batches);
}

std::vector<PipelineAction> pipeline_schedule(job::PipelineSchedule schedule, int stage,
                                              int num_stages, int64_t num_micro_batches) {
  using enum PipelineAction::Kind;
  const int64_t in_flight = max_in_flight(schedule, stage, num_stages, num_micro_batches);
  std::vector<PipelineAction> actions;
  int64_t next_forward = 0;
  for (int64_t backward = 0; backward < num_micro_batches; ++backward) {
    const int64_t ahead = std::min(backward + in_flight, num_micro_batches);
    while (next_forward < ahead) actions.push_back({kForward, next_forward++});
    actions.push_back({kBackward, backward});
  }
  return actions;
}

}  // namespace xffl::train
