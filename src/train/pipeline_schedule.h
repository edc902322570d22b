// The order of a pipeline stage's forward and backward passes in a step; pure, tested without
// ranks.
//
// Both schedules add up each weight's gradient in the order of micro-batches, as without a
// pipeline. They differ in the number of micro-batches whose activations a stage keeps.
#pragma once

#include <cstdint>
#include <vector>

#include "xffl/job/job_spec.h"

namespace xffl::train {

struct PipelineAction {
  enum class Kind { kForward, kBackward };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// Each of `num_micro_batches` once forward and once backward, both in ascending order.
///   gpipe (Huang et al., 2019)  all forward, then all backward: all micro-batches in flight
///   1f1b (PipeDream-flush; Narayanan et al., 2021)  a warm-up of num_stages - stage - 1 forwards,
///   then one forward and one backward alternately: at most num_stages - stage in flight
/// A pipeline of one stage has one micro-batch in flight with either.
std::vector<PipelineAction> pipeline_schedule(job::PipelineSchedule schedule, int stage,
                                              int num_stages, int64_t num_micro_batches);

/// The most micro-batches whose activations the stage holds at once.
int64_t max_in_flight(job::PipelineSchedule schedule, int stage, int num_stages,
                      int64_t num_micro_batches);

}  // namespace xffl::train
