// job.json: a facility's job, written by the coordinator, read by the trainer.
//
// The file is an API: docs/reference/job_json.md describes it, and configs/trainers/ holds a
// foreign trainer that reads it. Relative paths start at the folder of job.json, so that users can
// move a job's folder. Unknown keys are an error in the same format version.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/enum_names.h"

namespace xffl::job {

using xffl::to_string;

/// A job gets the lowest version that has all that the job asks for, so that older trainers go on
/// to do the jobs that they know and refuse the others.
inline constexpr int kOldestJobVersion = 4;
inline constexpr int kJobVersion = 5;

/// The attempt, the facility and the round of a job. The report repeats the key.
struct JobKey {
  std::string project;   // ProjectName alphabet
  std::string run;       // "0003"
  int round = 0;         // 1-based
  std::string facility;  // FacilityName alphabet
  int attempt = 1;       // 1-based
  std::string nonce;     // 32 hexadecimal digits, fresh for each attempt
  bool operator==(const JobKey&) const = default;

  /// "xffl-<project>-<run>-r0002-<facility>-a1", for messages. The batch job's name is
  /// plan::job_name(), which differs between runs of the same number.
  std::string name() const;
  /// "r0002-<nonce>": the folder of the optimizer's state that this attempt leaves.
  std::string optimizer_state_name() const;
};

/// The trained weights, or trained minus input weights (subtracted in float32, then rounded).
enum class UpdateKind { kWeights, kDelta };
constexpr auto names_of(UpdateKind) { return enum_names("weights", "delta"); }

enum class FloatType { kFloat32, kBfloat16, kFloat16 };
constexpr auto names_of(FloatType) { return enum_names("fp32", "bf16", "fp16"); }

/// The output of a job that has to finish early: "update", its trained weights so far, or
/// "checkpoint", from which a later attempt in the same round continues.
enum class OnStop { kUpdate, kCheckpoint };
constexpr auto names_of(OnStop) { return enum_names("update", "checkpoint"); }

/// The state that is sharded over the ranks (Rajbhandari et al., 2020; Zhao et al., 2023): "none"
/// (data parallelism), "optimizer" (ZeRO-1), "gradients" (ZeRO-2), "full" (ZeRO-3), and "hybrid"
/// and "hybrid_zero2": full and gradients within groups of shard_group_size ranks, with a replica
/// in each group.
enum class Sharding { kNone, kOptimizer, kGradients, kFull, kHybrid, kHybridZero2 };
constexpr auto names_of(Sharding) {
  return enum_names("none", "optimizer", "gradients", "full", "hybrid", "hybrid_zero2");
}

/// The activations that the backward pass recomputes instead of keeping them: "none"; "cheap": the
/// outputs of norms and activation functions; or "full": a whole block from its input.
enum class Recompute { kNone, kCheap, kFull };
constexpr auto names_of(Recompute) { return enum_names("none", "cheap", "full"); }

/// The state in the host's memory: "none", "optimizer" (masters, moments, reduced gradients; the
/// step runs there), or "parameters" (the optimizer's state, and the shards from which ranks gather
/// parameters).
enum class Offload { kNone, kOptimizer, kParameters };
constexpr auto names_of(Offload) { return enum_names("none", "optimizer", "parameters"); }

/// The weights that the optimizer updates, beside the 16-bit weights of precision bf16: "fp32"
/// masters, "split": the weights and 16 further bits, together exact float32 masters in 4 bytes a
/// parameter instead of 6, or "none": the weights alone ("pure bf16"), which lose updates below
/// half a unit in their last place.
enum class Masters { kFloat32, kSplit, kNone };
constexpr auto names_of(Masters) { return enum_names("fp32", "split", "none"); }

/// The storage of the optimizer's moments or gradients: "fp32", or, with precision bf16, "bf16".
enum class StateDtype { kFloat32, kBfloat16 };
constexpr auto names_of(StateDtype) { return enum_names("fp32", "bf16"); }

/// The result of a training that validation has ended early: "best", the model with the lowest loss
/// measured mid-training, or "last", the last model.
enum class EarlyStopKeep { kBest, kLast };
constexpr auto names_of(EarlyStopKeep) { return enum_names("best", "last"); }

/// The kernel of a GPU's attention: "auto" is the fastest one that PyTorch has for the shape; with
/// another one a shape that it lacks is an error. A CPU always uses xffl's own kernel.
enum class AttentionKernel { kAuto, kFlash, kCudnn, kEfficient, kMath };
constexpr auto names_of(AttentionKernel) {
  return enum_names("auto", "flash", "cudnn", "efficient", "math");
}

/// The optimizers of torch.optim. AdamW decays the weights beside the gradient's step; Adam and SGD
/// add the decay to the gradient.
enum class OptimizerKind { kAdamw, kAdam, kSgd };
constexpr auto names_of(OptimizerKind) { return enum_names("adamw", "adam", "sgd"); }

/// wsd (warm-up, stable, decay: Hu et al., 2024) keeps the peak and falls linearly at the end.
enum class ScheduleKind { kConstant, kLinear, kCosine, kWsd };
constexpr auto names_of(ScheduleKind) { return enum_names("constant", "linear", "cosine", "wsd"); }

/// Learning rate over the federation's steps: warm-up from 0 to `learning_rate`, then `kind` down
/// to learning_rate * min_ratio at `total_steps`. The job runs steps first_step .. first_step +
/// steps - 1.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_ratio = 0.0;
  double decay_ratio = 0.1;  // of wsd: the share of total_steps in which the rate falls
  bool operator==(const Schedule&) const = default;
};

/// The order of a pipeline stage's micro-batches: all forward, then all backward (Huang et al.,
/// 2019), or one forward, one backward (Narayanan et al., 2019: PipeDream-flush), which keeps fewer
/// micro-batches in memory.
enum class PipelineSchedule { kGpipe, k1F1B };
constexpr auto names_of(PipelineSchedule) { return enum_names("gpipe", "1f1b"); }

/// The model's units in `stages` parts, each on ranks of its own. A step's micro-batches are the
/// sequences of a data rank, micro_batch_size at a time.
struct Pipeline {
  int64_t stages = 1;  // 1: no pipeline
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool operator==(const Pipeline&) const = default;
};

/// Groups of ranks average the weights after `interval` steps, or the gradients of each step.
enum class Exchange { kWeights, kGradients };
constexpr auto names_of(Exchange) { return enum_names("weights", "gradients"); }

/// A group's share of the mean: equal, or proportional to its tokens.
enum class GroupWeighting { kEqual, kTokens };
constexpr auto names_of(GroupWeighting) { return enum_names("equal", "tokens"); }

/// The optimizer of the weights' mean change: "average" applies the change as it is (local SGD:
/// Stich, 2019), the other optimizers use the change as a gradient (Reddi et al., 2021; DiLoCo,
/// Douillard et al., 2023: "nesterov").
enum class OuterOptimizer { kAverage, kSgd, kNesterov, kAdam };
constexpr auto names_of(OuterOptimizer) { return enum_names("average", "sgd", "nesterov", "adam"); }

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

/// Low-rank adapters (Hu et al., 2022): only the adapters are trained.
struct Lora {
  int64_t rank = 0;      // 0: none
  double alpha = 16;     // the adapters' product is scaled by alpha / rank
  double dropout = 0.0;  // of the adapters' inputs
  std::vector<std::string> target_modules{"q_proj", "v_proj"};  // names in Hugging Face's models
  bool rank_stabilized = false;    // scaled by alpha / sqrt(rank): rsLoRA, Kalajdzievski, 2023
  bool weight_decomposed = false;  // with trained magnitudes: DoRA, Liu et al., 2024
  std::vector<std::string> modules_to_save{};  // embed_tokens, lm_head: trained whole
  bool operator==(const Lora&) const = default;
};

/// JobSpec's training.steps with training.epochs: only the trainer knows the number of sequences.
inline constexpr int64_t kStepsOfEpochs = 1'000'000'000;

struct TrainingSpec {
  int64_t steps = 0;             // optimizer steps in this job; 0: only evaluate, write no update
  double epochs = 0.0;           // passes over the data in this job, in place of steps; 0: steps
  int64_t total_rounds = 0;      // of the federation, with epochs
  int64_t first_step = 0;        // steps already done by this facility in earlier rounds
  int64_t batch_size = 8;        // sequences per optimizer step, over all ranks
  int64_t micro_batch_size = 8;  // sequences per rank and forward pass; the rest accumulates
  double learning_rate = 1e-5;
  Schedule schedule;
  OptimizerKind optimizer = OptimizerKind::kAdamw;
  double momentum = 0.0;      // of sgd
  bool nesterov = false;      // Nesterov's momentum
  double weight_decay = 0.0;  // on matrices only: not on norms and biases
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double max_grad_norm = 1.0;  // global L2 norm; 0: no clipping
  uint64_t seed = 0;
  // The type of activations and matrix products. The optimizer's state is float32 but for the next
  // three fields.
  FloatType precision = FloatType::kFloat32;
  Masters masters = Masters::kFloat32;
  StateDtype moment_dtype = StateDtype::kFloat32;
  StateDtype gradient_dtype = StateDtype::kFloat32;
  Sharding sharding = Sharding::kNone;
  int64_t shard_group_size = 0;  // ranks of a hybrid or hybrid_zero2 group; 0: the ranks of a node
  Recompute recompute = Recompute::kNone;
  AttentionKernel attention = AttentionKernel::kAuto;
  Offload offload = Offload::kNone;
  int64_t validation_samples = 0;     // sequences evaluated before and after; 0: all
  int64_t validation_batch_size = 0;  // sequences per rank and forward pass; 0: micro_batch_size
  int64_t train_samples = 0;          // only the first N sequences of the data set are used; 0: all
  int64_t checkpoint_interval = 0;    // steps between two checkpoints inside the job; 0: none
  int64_t keep_checkpoints = 2;       // checkpoints that stay, newest first
  int64_t max_tokens = 0;             // target tokens after which the job ends; 0: no limit
  int64_t validation_interval = 0;    // steps between two validations mid-training; 0: none
  int64_t early_stop_patience = 0;  // validations without a lower loss before the end; 0: no limit
  EarlyStopKeep early_stop_keep = EarlyStopKeep::kBest;
  // FedProx (Li et al., 2020): gradients get proximal * (weights - input weights).
  double proximal = 0.0;
  bool document_mask = false;  // attention within a document only; each document restarts positions
  bool deterministic = false;  // bit-identical results on the same devices, slower on GPUs
  bool keep_optimizer = false;      // the optimizer's moments stay at the facility between rounds
  std::vector<std::string> freeze;  // parameters that stay fixed: names with * and ?
  Lora lora;
  RankGroups groups;
  Pipeline pipeline;
  bool operator==(const TrainingSpec&) const = default;
};

/// A data set that measures the model before and after training, by name ("it").
struct ValidationSet {
  std::string name;
  std::string path;  // token shard
  bool operator==(const ValidationSet&) const = default;
};

/// The input model as its differences from a model at the facility (xffl/pack/).
struct PackedModel {
  std::string path;              // the packed folder
  std::string sha256;            // root hash of its manifest.json
  std::string reference_path;    // folder of the model that it was packed against
  std::string reference_sha256;  // root hash of its manifest.json
  std::string failure_path;      // a job that cannot unpack the model writes the reason here
  bool operator==(const PackedModel&) const = default;
};

struct JobSpec {
  JobKey key;
  std::string base_model_path;                   // HF folder
  std::string base_model_sha256;                 // root hash of its manifest.json
  std::optional<PackedModel> base_model_packed;  // the job unpacks it to base_model_path
  std::vector<std::string> train_paths;          // token shards
  std::vector<ValidationSet> validation;
  std::string adapter_path;    // folder of the input adapter in PEFT's format; empty: none
  std::string adapter_sha256;  // root hash of its manifest.json; empty without adapter_path
  std::string optimizer_path;  // folder of the moments kept between rounds; empty: not kept
  std::string update_path;     // folder that the job creates by rename when complete
  std::string report_path;     // written last, by rename
  std::string metrics_path;    // metrics.jsonl, appended per step
  std::string state_path;      // checkpoints, shared by all attempts at the facility's round
  OnStop on_stop = OnStop::kUpdate;
  UpdateKind update_kind = UpdateKind::kDelta;
  FloatType update_dtype = FloatType::kBfloat16;
  TrainingSpec training;
  bool operator==(const JobSpec&) const = default;

  /// The file "model.failure" beside the report: the reason of a job whose input model is damaged.
  /// The coordinator then pushes the model again and does not count the attempt.
  std::filesystem::path model_failure_path() const;
};

/// The last part of JobSpec::optimizer_path for a job without an initial optimizer state.
inline constexpr std::string_view kNoOptimizerState = "none";

/// Writes `reason` to a model_failure_path(), whole or not at all; logs its own failure.
void report_model_failure(const std::filesystem::path& path, const std::string& reason);

/// Reads and validates job.json; makes relative paths absolute. Throws kNotFound, kCorrupt (with
/// the key's path).
JobSpec read_job_spec(const std::filesystem::path& path);
JobSpec parse_job_spec(std::string_view json, std::string_view origin);
/// The file's text; keys in a fixed order, so equal specs give equal bytes. Throws kCorrupt for a
/// spec that parse_job_spec would reject.
std::string format_job_spec(const JobSpec& spec);

}  // namespace xffl::job
