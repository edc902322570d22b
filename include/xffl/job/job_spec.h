// What a facility's job is told: job.json, written by the coordinator, read by the trainer.
//
// The file is an API: docs/reference/job_json.md describes it, configs/trainers/ holds a foreign
// trainer that honours it. Relative paths in it are relative to the folder of job.json itself, so
// that a job's folder can be moved. Unknown keys are an error in the same format version.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/job/training_options.h"

namespace xffl::job {

inline constexpr int kJobVersion = 4;

/// Which attempt at which facility's part of which round this is. The report echoes it.
struct JobKey {
  std::string project;   // ProjectName alphabet
  std::string run;       // "0003"
  int round = 0;         // 1-based
  std::string facility;  // FacilityName alphabet
  int attempt = 1;       // 1-based
  std::string nonce;     // 32 hexadecimal digits, fresh for each attempt
  bool operator==(const JobKey&) const = default;

  /// "xffl-<project>-<run>-r0002-<facility>-a1": the batch job's name.
  std::string job_name() const;
};

/// The trained weights, or trained minus given (subtracted in float32, then rounded).
enum class UpdateKind { kWeights, kDelta };
enum class FloatType { kFloat32, kBfloat16, kFloat16 };  // "fp32", "bf16", "fp16"
enum class ScheduleKind { kConstant, kLinear, kCosine };

/// The output of a job that has to finish early: "update", its trained weights so far, or
/// "checkpoint", from which a later attempt in the same round continues.
enum class OnStop { kUpdate, kCheckpoint };

/// What each rank keeps a part of only (Rajbhandari et al., 2020; Zhao et al., 2023): "none" (data
/// parallelism), "optimizer" (ZeRO-1), "gradients" (ZeRO-2), "full" (ZeRO-3), and "hybrid" and
/// "hybrid_zero2": full and gradients within groups of shard_group_size ranks, copies between them.
enum class Sharding { kNone, kOptimizer, kGradients, kFull, kHybrid, kHybridZero2 };
/// What backward computes again: "none", "cheap": norms and activations, or "full": all of a block
/// from its input.
enum class Recompute { kNone, kCheap, kFull };
/// What lives in the host's memory: "none", "optimizer" (masters, moments, reduced gradients; the
/// step is done there), or "parameters" (these and what parameters are gathered from).
enum class Offload { kNone, kOptimizer, kParameters };

/// What the optimizer updates, beside the 16-bit weights of precision bf16: "fp32" masters,
/// "split": the weights and 16 further bits, together exact float32 masters in 4 bytes a parameter
/// instead of 6, or "none": the weights alone ("pure bf16"), which lose updates below half a unit
/// in their last place.
enum class Masters { kFloat32, kSplit, kNone };
/// How something that the optimizer works on is stored: "fp32", or, with precision bf16, "bf16".
enum class StateDtype { kFloat32, kBfloat16 };

/// Which model a training leaves that validation has ended: the one with the lowest loss of those
/// that were measured amid it, "best", or the "last".
enum class EarlyStopKeep { kBest, kLast };

/// Learning rate over the federation's steps: warm-up from 0 to `learning_rate`, then `kind` down
/// to learning_rate * min_ratio at `total_steps`. The job runs steps first_step .. first_step +
/// steps - 1.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_ratio = 0.0;
  bool operator==(const Schedule&) const = default;
};

struct TrainingSpec {
  int64_t steps = 0;             // optimizer steps in this job; 0: only evaluate, write no update
  int64_t first_step = 0;        // steps already done by this facility in earlier rounds
  int64_t batch_size = 8;        // sequences per optimizer step, over all ranks
  int64_t micro_batch_size = 8;  // sequences per rank and forward pass; the rest accumulates
  double learning_rate = 1e-5;
  Schedule schedule;
  // Decoupled (Loshchilov & Hutter, 2019), on matrices only: not on norms and biases.
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double max_grad_norm = 1.0;  // global L2 norm; 0: no clipping
  uint64_t seed = 0;
  // Of activations and matrix products; what the optimizer works on is float32 unless said here.
  FloatType precision = FloatType::kFloat32;
  Masters masters = Masters::kFloat32;
  StateDtype moment_dtype = StateDtype::kFloat32;
  StateDtype gradient_dtype = StateDtype::kFloat32;
  Sharding sharding = Sharding::kNone;
  // Ranks that shard together with hybrid and hybrid_zero2; 0: those of a node.
  int64_t shard_group_size = 0;
  Recompute recompute = Recompute::kNone;
  Offload offload = Offload::kNone;
  int64_t validation_samples = 0;   // sequences evaluated before and after; 0: all
  int64_t train_samples = 0;        // only the first N sequences of the data set are used; 0: all
  int64_t checkpoint_interval = 0;  // steps between two checkpoints inside the job; 0: none
  int64_t keep_checkpoints = 2;     // the newest so many stay
  int64_t max_tokens = 0;           // the job ends once it has seen so many targets; 0: no limit
  int64_t validation_interval = 0;  // steps between two validations amid the training; 0: none
  int64_t early_stop_patience =
      0;  // ends after so many of them without a lower mean loss; 0: never
  EarlyStopKeep early_stop_keep = EarlyStopKeep::kBest;  // what such an end leaves
  // FedProx (Li et al., 2020): gradients get proximal * (weights - given weights).
  double proximal = 0.0;
  bool document_mask = false;       // attention within a document only, positions restart with it
  bool deterministic = false;       // the same bits again on the same devices, at a cost on GPUs
  bool keep_optimizer = false;      // the moments of AdamW stay at the facility between rounds
  std::vector<std::string> freeze;  // parameters not to train: names with * and ?
  Lora lora;
  RankGroups groups;
  Pipeline pipeline;
  bool operator==(const TrainingSpec&) const = default;
};

/// Something to measure the model on before and after training, by name ("it").
struct ValidationSet {
  std::string name;
  std::string path;  // token shard
  bool operator==(const ValidationSet&) const = default;
};

/// The model to start from as its differences from one that the facility holds (xffl/pack/).
struct PackedModel {
  std::string path;              // the packed folder
  std::string sha256;            // root hash of its manifest.json
  std::string reference_path;    // folder of the model that it was packed against
  std::string reference_sha256;  // root hash of its manifest.json
  std::string failure_path;      // a job that cannot unpack it writes here why, and ends
  bool operator==(const PackedModel&) const = default;
};

struct JobSpec {
  JobKey key;
  std::string base_model_path;                   // HF folder
  std::string base_model_sha256;                 // root hash of its manifest.json
  std::optional<PackedModel> base_model_packed;  // the job makes base_model_path of it
  std::vector<std::string> train_paths;          // token shards
  std::vector<ValidationSet> validation;
  std::string adapter_path;    // folder of the given adapters in PEFT's format; empty: none
  std::string adapter_sha256;  // root hash of its manifest.json; empty with adapter_path
  std::string optimizer_path;  // folder of the moments kept between rounds; empty: not kept
  std::string update_path;     // folder that the job creates by rename when complete
  std::string report_path;     // written last, by rename
  std::string metrics_path;    // metrics.jsonl, appended per step
  std::string
      state_path;  // checkpoints inside the job; all attempts at one part of a round share it
  OnStop on_stop = OnStop::kUpdate;
  UpdateKind update_kind = UpdateKind::kDelta;
  FloatType update_dtype = FloatType::kBfloat16;
  TrainingSpec training;
  bool operator==(const JobSpec&) const = default;
};

/// Reads and validates job.json; relative paths come back absolute. Throws kNotFound, kCorrupt
/// (with the key's path).
JobSpec read_job_spec(const std::filesystem::path& path);
JobSpec parse_job_spec(std::string_view json, std::string_view origin);
/// The file's text; keys in a fixed order, so equal specs give equal bytes. Throws kCorrupt for
/// what parse_job_spec would refuse: nothing is written that cannot be read.
std::string format_job_spec(const JobSpec& spec);

std::string_view to_string(UpdateKind kind);
std::string_view to_string(FloatType type);
std::string_view to_string(ScheduleKind kind);
std::string_view to_string(OnStop on_stop);
std::string_view to_string(Masters masters);
std::string_view to_string(StateDtype dtype);
std::string_view to_string(EarlyStopKeep keep);
std::string_view to_string(Sharding sharding);
std::string_view to_string(Recompute recompute);
std::string_view to_string(Offload offload);
std::string_view to_string(PipelineSchedule schedule);
std::string_view to_string(Exchange exchange);
std::string_view to_string(GroupWeighting weighting);
std::string_view to_string(OuterOptimizer optimizer);
/// Inverse; empty when `text` is none of the names.
std::optional<UpdateKind> parse_update_kind(std::string_view text);
std::optional<FloatType> parse_float_type(std::string_view text);
std::optional<ScheduleKind> parse_schedule_kind(std::string_view text);
std::optional<OnStop> parse_on_stop(std::string_view text);
std::optional<Masters> parse_masters(std::string_view text);
std::optional<StateDtype> parse_state_dtype(std::string_view text);
std::optional<EarlyStopKeep> parse_early_stop_keep(std::string_view text);
std::optional<Sharding> parse_sharding(std::string_view text);
std::optional<Recompute> parse_recompute(std::string_view text);
std::optional<Offload> parse_offload(std::string_view text);
std::optional<PipelineSchedule> parse_pipeline_schedule(std::string_view text);
std::optional<Exchange> parse_exchange(std::string_view text);
std::optional<GroupWeighting> parse_group_weighting(std::string_view text);
std::optional<OuterOptimizer> parse_outer_optimizer(std::string_view text);

}  // namespace xffl::job
