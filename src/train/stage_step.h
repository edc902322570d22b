// Runs a step's micro-batches through this rank's stage.
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
  std::function<void()> between;                  // called before work that belongs to no phase
};

/// Runs forward and backward of all `micro_batches`, in the order of `schedule`; collective over
/// the pipeline. Every stage reads every batch and so knows its shapes. Adds the gradients of scale
/// * NLL to the stage's parameters; call it between begin_step() and finish_gradients(). Returns
/// the sum of the NLL, a float64 scalar on the device, in the last stage; an undefined tensor in
/// other stages.
at::Tensor run_stage(LoadedModel& model, Pipeline& pipeline, job::PipelineSchedule schedule,
                     const MicroBatches& micro_batches, double scale);

/// An uninitialized tensor for this batch's activations between two blocks (B x T x hidden).
at::Tensor activation_for(const LoadedModel& model, const Batch& batch);

}  // namespace xffl::train
