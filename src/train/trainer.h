// One rank's training: its optimizer, one optimizer step, and local SGD between groups of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "group_exchange.h"
#include "metrics.h"
#include "xffl/base/json.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/shard/optimizer.h"
#include "xffl/train/dataset.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {

struct StepResult {
  int64_t tokens = 0;           // target tokens of the step, over all ranks
  double loss = 0;              // their mean NLL before the step
  double grad_norm = 0;         // before clipping
  bool skipped = false;         // fp16 overflow: the loss scale was halved, nothing updated
  bool finite = true;           // false: the step updated nothing, and the training must end
  int64_t trained_tokens = 0;   // the part of `tokens` that updated the parameters
  int64_t trained_batches = 0;  // batches that updated the parameters: 0 or 1 for each group
  int64_t hits = 0;             // targets of `tokens` that the model gave the largest logit
  /// This rank's times. A GPU's AdamW still runs when a step returns, so `adamw` is then the
  /// previous step's time.
  PhaseSeconds phases{};

  double accuracy() const {
    return tokens > 0 ? static_cast<double>(hits) / static_cast<double>(tokens) : 0;
  }
};

/// Throws kFailed unless result.finite.
void check_finite(const StepResult& result);

/// The scale of an fp16 loss (Micikevicius et al., 2018; torch.amp.GradScaler's defaults). A
/// gradient that is not finite halves the scale; 2000 finite steps double the scale. The scale is 1
/// in other precisions.
class LossScale {
 public:
  explicit LossScale(job::FloatType precision) : dynamic_(precision == job::FloatType::kFloat16) {}
  double value() const { return dynamic_ ? scale_ : 1.0; }
  /// Whether the trainer skips a step with a non-finite gradient instead of failing.
  bool can_skip() const { return dynamic_ && scale_ > kSmallest; }
  void record(bool finite);
  /// The scale and the good steps, for checkpoints.
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

/// FedProx's proximal term (Li et al., 2020): it adds mu / 2 * |w - w_input|^2 to the loss. A
/// facility's training then stays near the input model, which all facilities share.
class Proximal {
 public:
  /// Keeps a float32 copy of this rank's masters, unless mu is 0. `parameters` must outlive this
  /// object.
  Proximal(shard::FlatParameters& parameters, double mu);

  /// gradient += scale * mu * (master - input). Call add_gradients() after finish_gradients(),
  /// before the norm.
  void add_gradients(double scale);

 private:
  shard::FlatParameters& parameters_;
  double mu_;
  std::vector<at::Tensor> input_S_;  // by unit
};

class Trainer {
 public:
  /// All arguments must outlive the trainer. `model` is the model of the pipeline's stage, and the
  /// pipeline is a pipeline of this rank's group.
  Trainer(LoadedModel& model, const job::TrainingSpec& training, const JobGroups& groups,
          Pipeline& pipeline, at::Device device);
  ~Trainer();

  /// Takes one optimizer step of this rank's group on the sequences `indices` (possibly none) of
  /// this rank's pipeline, from a global batch with `global_tokens` targets; collective. If loss or
  /// gradient is not finite, no rank of the group changes its parameters: see check_finite().
  StepResult step(const Dataset& data, std::vector<uint64_t> indices, int64_t global_tokens,
                  double learning_rate);

  /// Ends a step after check_finite() has passed in all groups; collective. Exchanges weights
  /// between groups when an exchange is due after `steps_done` steps. Returns the sums and means
  /// over all groups.
  StepResult end_step(int64_t steps_done, const StepResult& mine);

  /// Gathers the scalar state beside the buffers, which may differ between groups: for each group
  /// the optimizer's step count, the loss scale, its good steps, and the tokens since the last
  /// exchange. Collective; the result is the same on all ranks.
  Json gather_counts();
  /// Restores the scalar state of this rank's group.
  void restore_counts(const Json& counts);

  shard::Optimizer& optimizer() { return optimizer_; }
  GroupExchange& exchange() { return exchange_; }

 private:
  at::Tensor forward_backward(const Dataset& data, const std::vector<uint64_t>& indices,
                              double scale);
  uint64_t dropout_seed(int64_t micro_batch) const;
  at::Tensor sum_over_ranks(const at::Tensor& mine) const;
  StepResult over_groups(const StepResult& mine) const;

  LoadedModel& model_;
  job::TrainingSpec training_;
  const JobGroups& groups_;
  Pipeline& pipeline_;
  at::Device device_;
  Proximal proximal_;
  shard::Optimizer optimizer_;
  LossScale loss_scale_;
  PhaseClock clock_;
  GroupExchange exchange_;
};

}  // namespace xffl::train
