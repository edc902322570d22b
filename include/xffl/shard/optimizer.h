// Optimizers over flat buffers, equal to torch.optim's: AdamW (Loshchilov & Hutter, 2019: Adam with
// decoupled weight decay), Adam (Kingma & Ba, 2015) and SGD, both with a weight decay that is a
// part of the gradient. SGD's momentum may be Nesterov's (Sutskever et al., 2013).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_parameters.h"

namespace xffl::shard {

struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  at::ScalarType moment_dtype = at::kFloat;  // or bfloat16, with a compute dtype of bfloat16
  job::OptimizerKind kind = job::OptimizerKind::kAdamw;
  double momentum = 0.0;  // of SGD
  bool nesterov = false;

  /// The number of buffers beside the masters: 2, for SGD 1 or without momentum 0.
  int num_moments() const;
};

OptimizerOptions optimizer_options(const job::TrainingSpec& training);

class CopiesToDevice;

class Optimizer {
 public:
  /// The moments, num_moments() buffers for each unit's masters on this rank, start at zero.
  /// `parameters` must outlive this object.
  Optimizer(FlatParameters& parameters, const OptimizerOptions& options);
  ~Optimizer();

  /// Updates the masters from the gradients times `gradient_factor`, then the compute weights. A
  /// step computes in float32 for every storage. Split masters take the same steps as float32
  /// masters. Without masters the step rounds the weights once. The gradients are undefined
  /// afterwards.
  void step(double learning_rate, double gradient_factor = 1);

  /// S elements for each unit, or no tensor if the optimizer lacks the moments; checkpoints save
  /// and load the moments. SGD's momentum is its first moment.
  std::vector<at::Tensor>& first_moments() { return first_moments_; }
  std::vector<at::Tensor>& second_moments() { return second_moments_; }
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }

 private:
  void step_on_range(size_t unit, const Range& range, const at::Tensor& copy, double learning_rate,
                     double gradient_factor);
  void step_and_send(size_t unit, double learning_rate, double gradient_factor);
  bool step_on_gpu(size_t unit, double learning_rate, double gradient_factor);
  bool step_on_unit(size_t unit, double learning_rate, double gradient_factor);

  FlatParameters& parameters_;
  OptimizerOptions options_;
  std::vector<at::Tensor> first_moments_;
  std::vector<at::Tensor> second_moments_;
  int64_t num_steps_ = 0;
  std::unique_ptr<CopiesToDevice> to_device_;  // for steps on the host with copies on a GPU
};

}  // namespace xffl::shard
