#include "supported.h"

#include <algorithm>
#include <string>

#include "xffl/base/error.h"
#include "xffl/train/trainer.h"

namespace xffl::train {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kConfig, what); }

void check_groups(const job::TrainingSpec& training, int world_size) {
  const job::RankGroups& groups = training.groups;
  if (groups.count == 1) return;
  if (world_size % groups.count != 0) {
    refuse("training.groups.count is " + std::to_string(groups.count) +
           ", which does not divide the " + std::to_string(world_size) + " ranks of this job");
  }
  const bool of_gradients = groups.exchange == job::Exchange::kGradients;
  if (of_gradients && groups.interval != 1) {
    refuse("training.groups.interval is " + std::to_string(groups.interval) +
           ", but gradients are exchanged in every step: leave it out, or exchange weights");
  }
  if (of_gradients && groups.outer.kind != job::OuterOptimizer::kAverage) {
    refuse("training.groups.outer is for the exchange of weights: with gradients, leave it out");
  }
  if (!of_gradients && training.validation_interval % groups.interval != 0) {
    refuse("training.validation_interval is " + std::to_string(training.validation_interval) +
           ", but only every " + std::to_string(groups.interval) +
           " steps (training.groups.interval) is there one model to measure: use a multiple");
  }
}

void check_pipeline(const job::TrainingSpec& training, int world_size) {
  const int64_t stages = training.pipeline.stages;
  if (stages == 1) return;
  const std::string given = "training.pipeline.stages is " + std::to_string(stages);
  if (world_size % stages != 0) {
    refuse(given + ", which does not divide the " + std::to_string(world_size) +
           " ranks of this job");
  }
  if (training.sharding != job::Sharding::kNone && training.sharding != job::Sharding::kOptimizer) {
    refuse(given + " with sharding '" + std::string(job::to_string(training.sharding)) +
           "': gradients would be reduced, and parameters gathered, for each of a pipeline's many "
           "micro-batches: use none or optimizer");
  }
  const auto refuse_with = [&](bool other, const std::string& key) {
    if (other) refuse(given + ", with training." + key + ": not supported together");
  };
  refuse_with(training.lora.rank > 0, "lora");
  refuse_with(!training.freeze.empty(), "freeze");
  refuse_with(training.groups.count > 1, "groups");
}

void check_early_stop(const job::JobSpec& spec) {
  if (spec.training.early_stop_patience == 0) return;
  if (spec.training.validation_interval == 0 || spec.validation.empty()) {
    refuse("training.early_stop_patience needs training.validation_interval and a validation set");
  }
}

void check_adapters(const job::JobSpec& spec) {
  const job::TrainingSpec& training = spec.training;
  const bool adapts = training.lora.rank > 0;
  if (!adapts && !spec.adapter_path.empty())
    refuse("adapter_path is given, but training.lora.rank is 0: this trainer trains adapters only");
  if (adapts && !training.freeze.empty())
    refuse("training.freeze together with training.lora: with adapters all else is frozen anyway");
}

// Whether anything that the optimizer works on is not float32.
bool is_narrow(const job::TrainingSpec& training) {
  return training.masters != job::Masters::kFloat32 ||
         training.moment_dtype != job::StateDtype::kFloat32 ||
         training.gradient_dtype != job::StateDtype::kFloat32;
}

// The first of these keys that is not float32, with its value.
std::string narrow_key(const job::TrainingSpec& training) {
  if (training.masters != job::Masters::kFloat32)
    return "training.masters is " + std::string(job::to_string(training.masters));
  const bool moments = training.moment_dtype != job::StateDtype::kFloat32;
  return std::string("training.") + (moments ? "moment" : "gradient") + "_dtype is bf16";
}

void check_bf16_gradients(const job::TrainingSpec& training, int world_size) {
  if (training.gradient_dtype == job::StateDtype::kFloat32) return;
  const int64_t data_ranks =
      world_size / training.groups.count / std::max<int64_t>(training.pipeline.stages, 1);
  const int64_t micro_batches =
      num_micro_batches(training, static_cast<int>(std::max<int64_t>(data_ranks, 1)));
  if (micro_batches > 1) {
    refuse(
        "training.gradient_dtype is bf16, with " + std::to_string(micro_batches) +
        " micro-batches a step on each rank: sums over them in bfloat16 would lose what is small. "
        "Use fp32, or raise micro_batch_size to a rank's part of batch_size (recompute: full "
        "makes room)");
  }
  if (training.proximal > 0)
    refuse(
        "training.gradient_dtype is bf16, with training.proximal: its small term would be lost "
        "in rounding: use fp32");
}

void check_storage(const job::TrainingSpec& training, int world_size) {
  if (!is_narrow(training)) return;
  if (training.precision != job::FloatType::kBfloat16) {
    refuse(narrow_key(training) + ", but training.precision is " +
           std::string(job::to_string(training.precision)) + ": only with bf16");
  }
  if (training.lora.rank > 0) {
    refuse(narrow_key(training) +
           ", with training.lora: adapters are small, nothing would be saved: use fp32");
  }
  const bool exchanges_weights =
      training.groups.count > 1 && training.groups.exchange == job::Exchange::kWeights;
  if (training.masters == job::Masters::kNone && exchanges_weights) {
    refuse(
        "training.masters is none, with training.groups that exchange weights: their mean would "
        "be rounded to bfloat16: use split or fp32, or exchange gradients");
  }
  check_bf16_gradients(training, world_size);
}

}  // namespace

void check_supported(const job::JobSpec& spec, int world_size) {
  const job::TrainingSpec& training = spec.training;
  check_groups(training, world_size);
  check_pipeline(training, world_size);
  check_early_stop(spec);
  check_adapters(spec);
  check_storage(training, world_size);
}

}  // namespace xffl::train
