// The options of a training that are off unless asked for: adapters, groups inside one job,
// pipelines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace xffl::job {

/// Which order a pipeline's stage works its micro-batches in: all forward, then all backward
/// (Huang et al., 2019), or one forward, one backward (Narayanan et al., 2019: PipeDream-flush),
/// which keeps fewer of them.
enum class PipelineSchedule { kGpipe, k1F1B };  // "gpipe", "1f1b"

/// The model's units in `stages` parts, each on ranks of its own. A step's micro-batches are the
/// sequences of a data rank, micro_batch_size at a time.
struct Pipeline {
  int64_t stages = 1;  // 1: no pipeline
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool operator==(const Pipeline&) const = default;
};

/// What groups of ranks average: the weights after `interval` steps, or the gradients of each step.
enum class Exchange { kWeights, kGradients };
/// What a group's share of the mean is proportional to.
enum class GroupWeighting { kEqual, kTokens };
/// What the mean change of the weights is given to: "average" takes it as it is (local SGD: Stich,
/// 2019), the others as a gradient (Reddi et al., 2021; DiLoCo, Douillard et al., 2023:
/// "nesterov").
enum class OuterOptimizer { kAverage, kSgd, kNesterov, kAdam };

struct Outer {
  OuterOptimizer kind = OuterOptimizer::kAverage;
  double learning_rate = 1.0;
  double momentum = 0.9;  // of sgd and nesterov
  double beta1 = 0.9;     // of adam
  double beta2 = 0.99;
  double epsilon = 1e-8;
  bool operator==(const Outer&) const = default;
};

/// A federation inside one job: `count` groups of ranks that train on data of their own.
struct RankGroups {
  int64_t count = 1;     // 1: none
  int64_t interval = 1;  // steps between two exchanges
  Exchange exchange = Exchange::kWeights;
  GroupWeighting weighting = GroupWeighting::kEqual;
  Outer outer;
  bool operator==(const RankGroups&) const = default;
};

/// Low-rank adapters (Hu et al., 2022): only they are trained.
struct Lora {
  int64_t rank = 0;      // 0: none
  double alpha = 16;     // the adapters' product is scaled by alpha / rank
  double dropout = 0.0;  // of the adapters' inputs
  std::vector<std::string> target_modules{"q_proj", "v_proj"};  // names in Hugging Face's models
  bool operator==(const Lora&) const = default;
};

}  // namespace xffl::job
