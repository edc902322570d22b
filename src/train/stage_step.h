// A step's micro-batches on their way through this rank's stage.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>

#include "xffl/job/job_spec.h"
#include "xffl/train/dataset.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {

struct MicroBatches {
  int64_t count = 0;
  std::function<Batch(int64_t)> batch;            // on the model's device
  std::function<uint64_t(int64_t)> dropout_seed;  // see llama::Model::set_dropout_seed
  std::function<void()> between;                  // what follows belongs to no phase of the step
};

/// Forward and backward of all `micro_batches`, in the order of `schedule`; collective over the
/// pipeline. Every stage reads every batch, so that shapes need not be sent. Adds the gradients of
/// scale * NLL to the stage's parameters, between begin_step() and finish_gradients(), and returns
/// the sum of the NLL, a float64 scalar on the device: undefined but in the last stage.
at::Tensor run_stage(LoadedModel& model, Pipeline& pipeline, job::PipelineSchedule schedule,
                     const MicroBatches& micro_batches, double scale);

/// A tensor for what this batch's tokens are between two blocks (B x T x hidden).
at::Tensor activation_for(const LoadedModel& model, const Batch& batch);

}  // namespace xffl::train
