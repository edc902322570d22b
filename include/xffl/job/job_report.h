// report.json: the result of a facility's job, written last and by rename.
//
// A complete report whose key equals the job's is the only sign of success; the coordinator does
// not use exit codes. A report comes from the facility and is hostile until checked:
// parse_job_report bounds every number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/json.h"
#include "xffl/job/job_spec.h"

namespace xffl::job {

inline constexpr int kReportVersion = 2;
/// The reader still accepts version 1, without `stopped_early`: journals of earlier releases hold
/// such reports.
inline constexpr int kOldestReportVersion = 1;

inline constexpr size_t kMaxReasonBytes = 500;

/// Mean negative log-likelihood per predicted token, in nats, and the share of tokens to which the
/// model gives the largest probability (0 also if not measured), over all ranks.
struct ValidationResult {
  std::string name;
  int64_t tokens = 0;  // predicted tokens
  double nll_before = 0;
  double nll_after = 0;  // 0 also if not measured: is_measured_after()
  double accuracy_before = 0;
  double accuracy_after = 0;
  bool operator==(const ValidationResult&) const = default;
};

/// The machine of the job's first rank, and its libraries. Fields that are not known, or do not
/// apply, are empty or 0, and absent from the file.
struct TrainerEnvironment {
  std::string host, system;                   // "Linux 6.1.0 x86_64"
  std::string torch, cpu_capability;          // "2.11.0", "AVX2"
  int64_t cpus = 0, threads = 0;              // of the process, and used by it
  int64_t memory_bytes = 0;                   // of the machine
  int64_t shm_bytes = 0, shm_free_bytes = 0;  // of /dev/shm
  std::string backend;                        // of the ranks' group: "single", "gloo" or "nccl"
  std::string cuda, driver, cudnn, nccl;      // versions: "13.0", "580.65.06", "9.10.2", "2.27.3"
  std::vector<std::string> architectures;     // for which the CUDA kernels are compiled
  std::vector<std::string> gpus;              // "NVIDIA H100, 85 GB, sm_90"
  std::vector<std::string> interfaces, infiniband;  // "ib0 200000 Mb/s"; "mlx5_0"
  bool operator==(const TrainerEnvironment&) const = default;
};

struct JobReport {
  JobKey key;
  std::string base_model_sha256;
  std::string update_sha256;  // root hash of the update's manifest.json; empty for an evaluate-only
                              // job, and for a job that stopped and left a checkpoint
  int64_t steps = 0;
  /// The job stopped on a signal ahead of the walltime: `steps` may be fewer than the job's, and
  /// `nll_after` is 0 for the sets that the job did not measure after training.
  bool stopped_early = false;
  int64_t samples = 0;         // sequences trained on
  int64_t tokens = 0;          // valid target tokens trained on: the aggregation weight by default
  double train_loss = 0;       // mean over the job's steps; 0 when steps is 0
  double train_loss_last = 0;  // of the last step
  std::vector<ValidationResult> validation;
  double train_seconds = 0;  // steps only, without loading, evaluation and saving
  double total_seconds = 0;
  double tokens_per_second = 0;
  int64_t peak_memory_bytes = 0;  // of the largest rank
  int world_size = 1;
  std::string scheduler_job_id;  // SLURM_JOB_ID or empty
  int restarts = 0;              // SLURM_RESTART_COUNT
  std::string trainer;           // "xffl-train 0.1.0 (torch 2.11.0)"
  // The fields below are absent from the file when they are empty: not known, or not the case.
  int64_t nodes = 0;  // machines of the job's ranks
  /// The job's distinct token shards, for training and validation. `data_sha256` is the SHA-256 of
  /// their SHA-256 sums, one line each, in the order of job.json: `sha256sum SHARD... | cut -c-64 |
  /// sha256sum` prints it.
  int64_t data_files = 0;
  int64_t data_bytes = 0;
  std::string data_sha256;
  std::string program_sha256;  // of the trainer's executable file
  /// The energy of the ranks' GPUs in this start of the job, without the rest of the nodes.
  int64_t gpu_energy_joules = 0;
  double samples_per_second = 0;          // in train_seconds
  double tokens_per_second_per_rank = 0;  // a rank is a GPU, or a share of a machine's CPUs
  double startup_seconds = 0;     // from the start of rank 0's process to the first work on data
  double evaluation_seconds = 0;  // of all validations: before, during and after the training
  TrainerEnvironment environment;
  double train_accuracy = 0;       // mean over the job's steps, of the models before the steps
  double train_accuracy_last = 0;  // of the last step
  /// The reason why the optimizer did not continue from spec.optimizer_path, at most
  /// kMaxReasonBytes; empty without a reason.
  std::string optimizer_lost;
  bool operator==(const JobReport&) const = default;
};

/// Throws kCorrupt with the key's path: missing or unknown keys, non-finite or negative numbers,
/// counts above 2^53.
JobReport parse_job_report(std::string_view json, std::string_view origin);
JobReport read_job_report(const std::filesystem::path& path);
/// The file's text; keys in a fixed order. Throws kCorrupt for a report that parse_job_report would
/// reject.
std::string format_job_report(const JobReport& report);

/// The object `environment` of a report, with all its keys.
Json environment_json(const TrainerEnvironment& environment);

/// True for a job that stopped and left a checkpoint, from which another attempt continues.
bool is_checkpointed(const JobReport& report, const JobSpec& spec);

/// False for a validation set that a job that stopped early did not measure after the training.
inline bool is_measured_after(const JobReport& report, const ValidationResult& result) {
  return !report.stopped_early || result.nll_after > 0;
}

/// Throws kRejected, naming field, expected and found, unless `report` answers exactly this job:
/// key, base model, steps done (spec.training.steps; from 1 on when stopped_early), samples and
/// tokens that this number of steps can have used (at most batch_size * steps sequences of at most
/// `max_sequence_length` tokens, and at most one step beyond max_tokens), a result for each
/// validation set (not when stopped_early). For a checkpointed job, checks only key, base model and
/// steps.
void check_report_answers(const JobReport& report, const JobSpec& spec,
                          int64_t max_sequence_length);

}  // namespace xffl::job
