#include "xffl/job/supported.h"

#include <algorithm>

#include "xffl/base/error.h"

namespace xffl::job {
namespace {

using Problem = std::optional<Unsupported>;

Problem unsupported(const std::string& key, const std::string& message) {
  return Unsupported{key, message};
}

Problem check_optimizer(const TrainingSpec& training) {
  const std::string kind(to_string(training.optimizer));
  if (training.momentum > 0 && training.optimizer != OptimizerKind::kSgd)
    return unsupported("momentum",
                       "training.momentum is for the optimizer sgd, but "
                       "training.optimizer is " +
                           kind + ": leave it out, or use beta1 of " + kind);
  if (training.nesterov && training.momentum == 0)
    return unsupported("nesterov",
                       "training.nesterov needs training.optimizer sgd and training.momentum");
  return {};
}

Problem check_attention(const TrainingSpec& training) {
  const AttentionKernel kernel = training.attention;
  const std::string given = "training.attention is " + std::string(to_string(kernel));
  const bool is_narrow = kernel == AttentionKernel::kFlash || kernel == AttentionKernel::kCudnn;
  if (is_narrow && training.precision == FloatType::kFloat32)
    return unsupported("attention", given +
                                        ", but training.precision is fp32: flash and cudnn compute "
                                        "in bf16 and fp16 only");
  if (kernel == AttentionKernel::kCudnn && training.deterministic)
    return unsupported("attention", given +
                                        ", with training.deterministic: its gradients differ from "
                                        "run to run");
  return {};
}

Problem check_groups(const TrainingSpec& training, int world_size) {
  const RankGroups& groups = training.groups;
  if (groups.count == 1) return {};
  if (training.epochs > 0)
    return unsupported(
        "epochs_per_round",
        "training.epochs_per_round with training.groups: the groups' data may differ "
        "in size: use steps_per_round");
  if (world_size % groups.count != 0) {
    return unsupported("groups.count", "training.groups.count is " + std::to_string(groups.count) +
                                           ", which does not divide the " +
                                           std::to_string(world_size) + " ranks of this job");
  }
  const bool of_gradients = groups.exchange == Exchange::kGradients;
  if (of_gradients && groups.interval != 1) {
    return unsupported(
        "groups.interval",
        "training.groups.interval is " + std::to_string(groups.interval) +
            ", but gradients are exchanged in every step: leave it out, or exchange weights");
  }
  if (of_gradients && groups.outer.kind != OuterOptimizer::kAverage) {
    return unsupported(
        "groups.outer",
        "training.groups.outer is for the exchange of weights: with gradients, leave it out");
  }
  if (!of_gradients && training.validation_interval % groups.interval != 0) {
    return unsupported(
        "validation_interval",
        "training.validation_interval is " + std::to_string(training.validation_interval) +
            ", but only every " + std::to_string(groups.interval) +
            " steps (training.groups.interval) is there one model to measure: use a multiple");
  }
  return {};
}

Problem check_pipeline(const TrainingSpec& training, int world_size) {
  const int64_t stages = training.pipeline.stages;
  if (stages == 1) return {};
  const std::string given = "training.pipeline.stages is " + std::to_string(stages);
  if (world_size % stages != 0) {
    return unsupported("pipeline.stages", given + ", which does not divide the " +
                                              std::to_string(world_size) + " ranks of this job");
  }
  if (training.sharding != Sharding::kNone && training.sharding != Sharding::kOptimizer) {
    return unsupported(
        "pipeline.stages",
        given + " with sharding '" + std::string(to_string(training.sharding)) +
            "': gradients would be reduced, and parameters gathered, for each of a pipeline's many "
            "micro-batches: use none or optimizer");
  }
  if (training.groups.count == 1) return {};
  return unsupported("pipeline.stages", given + ", with training.groups: not supported together");
}

Problem check_early_stop(const TrainingSpec& training, size_t num_validation_sets) {
  if (training.early_stop_patience == 0) return {};
  if (training.validation_interval > 0 && num_validation_sets > 0) return {};
  return unsupported(
      "early_stop_patience",
      "training.early_stop_patience needs training.validation_interval and a validation set");
}

// The first key of the optimizer's state that is not float32, with its value; empty when all keys
// are float32.
std::pair<std::string, std::string_view> narrow_key(const TrainingSpec& training) {
  if (training.masters != Masters::kFloat32) return {"masters", to_string(training.masters)};
  if (training.moment_dtype != StateDtype::kFloat32)
    return {"moment_dtype", to_string(training.moment_dtype)};
  if (training.gradient_dtype != StateDtype::kFloat32)
    return {"gradient_dtype", to_string(training.gradient_dtype)};
  return {};
}

Problem check_bf16_gradients(const TrainingSpec& training, int64_t data_ranks) {
  if (training.gradient_dtype == StateDtype::kFloat32) return {};
  const int64_t micro_batches = num_micro_batches(training, static_cast<int>(data_ranks));
  if (micro_batches > 1)
    return unsupported(
        "gradient_dtype",
        "training.gradient_dtype is bf16, with " + std::to_string(micro_batches) +
            " micro-batches a step on each rank: sums over them in bfloat16 would lose "
            "small values. Use fp32, or raise micro_batch_size to a rank's part of "
            "batch_size (recompute: full frees memory)");
  if (training.proximal > 0)
    return unsupported(
        "gradient_dtype",
        "training.gradient_dtype is bf16, with training.proximal: its small term would "
        "be lost in rounding: use fp32");
  return {};
}

Problem check_storage(const TrainingSpec& training, int64_t data_ranks) {
  const auto [key, value] = narrow_key(training);
  if (key.empty()) return {};
  const std::string given = "training." + key + " is " + std::string(value);
  if (training.precision != FloatType::kBfloat16)
    return unsupported(key, given + ", but training.precision is " +
                                std::string(to_string(training.precision)) + ": only with bf16");
  if (training.lora.rank > 0)
    return unsupported(key,
                       given +
                           ", with training.lora: adapters are small, nothing would be saved: use "
                           "fp32");
  const bool exchanges_weights =
      training.groups.count > 1 && training.groups.exchange == Exchange::kWeights;
  if (training.masters == Masters::kNone && exchanges_weights)
    return unsupported(
        "masters",
        "training.masters is none, with training.groups that exchange weights: their mean would "
        "be rounded to bfloat16: use split or fp32, or exchange gradients");
  return check_bf16_gradients(training, data_ranks);
}

Problem check_shard_groups(const TrainingSpec& training, int data_ranks, int on_a_machine) {
  try {
    shard_group_size(training, data_ranks, on_a_machine);
    return {};
  } catch (const Error& error) {
    return unsupported("shard_group_size", error.what());
  }
}

bool is_hybrid(Sharding sharding) {
  return sharding == Sharding::kHybrid || sharding == Sharding::kHybridZero2;
}

}  // namespace

std::optional<Unsupported> find_unsupported(const TrainingSpec& training,
                                            size_t num_validation_sets, const Ranks& ranks) {
  if (Problem found = check_optimizer(training)) return found;
  if (Problem found = check_attention(training)) return found;
  if (Problem found = check_groups(training, ranks.all)) return found;
  if (Problem found = check_pipeline(training, ranks.all)) return found;
  if (Problem found = check_early_stop(training, num_validation_sets)) return found;
  const int64_t data_ranks = ranks.all / (training.groups.count * training.pipeline.stages);
  if (Problem found = check_storage(training, data_ranks)) return found;
  return check_shard_groups(training, static_cast<int>(data_ranks), ranks.on_a_machine);
}

// The ranks that shard together are neighbours, so that a node's GPUs can be a group.
int shard_group_size(const TrainingSpec& training, int data_ranks, int on_a_machine) {
  const std::string mode(to_string(training.sharding));
  const auto wanted = training.shard_group_size;
  const std::string given = "training.shard_group_size is ";
  if (!is_hybrid(training.sharding)) {
    if (wanted == 0 || wanted == data_ranks) return data_ranks;
    throw Error(ErrorKind::kConfig, given + std::to_string(wanted) + ", but sharding '" + mode +
                                        "' shards over all " + std::to_string(data_ranks) +
                                        " ranks: leave it out, or use hybrid or hybrid_zero2");
  }
  const int64_t size = wanted == 0 ? std::min(on_a_machine, data_ranks) : wanted;
  if (size < 1 || data_ranks % size != 0)
    throw Error(ErrorKind::kConfig, given + std::to_string(size) + ", which does not divide the " +
                                        std::to_string(data_ranks) + " ranks of this job");
  return static_cast<int>(size);
}

int64_t num_micro_batches(const TrainingSpec& training, int num_data_ranks) {
  const int64_t per_rank = (training.batch_size + num_data_ranks - 1) / num_data_ranks;
  return (per_rank + training.micro_batch_size - 1) / training.micro_batch_size;
}

}  // namespace xffl::job
