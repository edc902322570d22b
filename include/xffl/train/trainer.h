// The optimizer of one rank's part of the model; and one optimizer step.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "xffl/job/job_spec.h"
#include "xffl/shard/adamw.h"
#include "xffl/train/dataset.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/phase_clock.h"
#include "xffl/train/pipeline.h"
#include "xffl/train/proximal.h"

namespace xffl::train {

struct StepResult {
  int64_t tokens = 0;          // target tokens of the step, over all ranks
  double loss = 0;             // mean NLL of them before the step
  double grad_norm = 0;        // before clipping
  bool skipped = false;        // fp16 overflowed: the scale of the loss was halved, nothing updated
  bool finite = true;          // else nothing was updated, and the training cannot go on
  int64_t trained_tokens = 0;  // of `tokens`, those that the parameters were updated with
  int64_t trained_batches = 0;  // the same of batches: 0 or 1, over groups up to their number
  /// Of this rank. A GPU's AdamW goes on when a step returns: there `adamw` is the step before's.
  PhaseSeconds phases{};
};

/// Throws kFailed unless result.finite.
void check_finite(const StepResult& result);

/// The scale of an fp16 loss (Micikevicius et al., 2018; torch.amp.GradScaler's defaults): halved
/// when a gradient is not finite, doubled after 2000 steps that were. 1 in other precisions.
class LossScale {
 public:
  explicit LossScale(job::FloatType precision) : dynamic_(precision == job::FloatType::kFloat16) {}
  double value() const { return dynamic_ ? scale_ : 1.0; }
  /// Whether a step with a gradient that is not finite is skipped rather than fatal.
  bool can_skip() const { return dynamic_ && scale_ > kSmallest; }
  void record(bool finite);
  /// For checkpoints.
  std::array<double, 2> state() const { return {scale_, static_cast<double>(good_steps_)}; }
  void set_state(const std::array<double, 2>& state) {
    scale_ = state[0];
    good_steps_ = static_cast<int>(state[1]);
  }

 private:
  static constexpr double kSmallest = 1.0 / 1024;
  static constexpr int kGrowthInterval = 2000;
  bool dynamic_;
  double scale_ = 65536;
  int good_steps_ = 0;
};

class Trainer {
 public:
  /// All of these must outlive the trainer; `model` is that of the pipeline's stage.
  Trainer(LoadedModel& model, const job::TrainingSpec& training, Pipeline& pipeline,
          at::Device device);
  ~Trainer();

  /// One optimizer step on the sequences `indices` (possibly none) of this rank's pipeline, out of
  /// a global batch with `global_tokens` targets; collective. The parameters are unchanged when
  /// loss or gradient is not finite, on all ranks of the group alike: see check_finite().
  StepResult step(const Dataset& data, std::vector<uint64_t> indices, int64_t global_tokens,
                  double learning_rate);

  /// What is called in each step between the sum over this group's ranks and clipping, with the
  /// target tokens of this group's batch; collective.
  void set_gradient_exchange(std::function<void(int64_t tokens)> exchange) {
    exchange_gradients_ = std::move(exchange);
  }

  shard::Adamw& optimizer() { return optimizer_; }
  LossScale& loss_scale() { return loss_scale_; }

 private:
  at::Tensor forward_backward(const Dataset& data, const std::vector<uint64_t>& indices,
                              double scale);
  uint64_t dropout_seed(int64_t micro_batch) const;
  at::Tensor sum_over_ranks(const at::Tensor& mine) const;

  LoadedModel& model_;
  job::TrainingSpec training_;
  Pipeline& pipeline_;
  at::Device device_;
  Proximal proximal_;
  shard::Adamw optimizer_;
  LossScale loss_scale_;
  PhaseClock clock_;
  std::function<void(int64_t)> exchange_gradients_;
};

}  // namespace xffl::train
