// The commands of xffl-train, one file each. Each command returns after success and throws
// xffl::Error otherwise.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "xffl/train/generate.h"

namespace xffl::train_app {

struct CommonOptions {
  std::string device = "auto";
  int threads = 0;  // 0: see train::choose_threads()
};

/// Settings of the whole process: freed memory stays in the process, and LibTorch's errors and
/// warnings have no stack traces unless TORCH_SHOW_CPP_STACKTRACES is 1.
void set_up_process();

/// Prints the error to stderr and ends the process with the exit code of the error's kind. Runs no
/// destructors, not even those of static objects. On a GPU destructors wait for kernels, and a
/// collective's kernel may wait forever for other ranks.
[[noreturn]] void end_process(const std::exception& error);

/// A line such as "xffl-train 0.1.0 (torch 2.11.0)".
std::string version_line();

struct EvaluateOptions {
  std::string model;
  std::string adapter;  // folder of a LoRA adapter; empty: none
  std::string tokens;
  std::string precision = "fp32";
  std::string sharding = "none";
  int64_t batch_size = 8;
  bool document_mask = false;
  bool json = false;
};

struct InitOptions {
  std::string config;
  std::string output;
  std::string tokenizer;
  std::string dtype = "fp32";
  uint64_t seed = 0;
};

struct MergeOptions {
  std::string model;
  std::string adapter;
  std::string output;
  std::string dtype;  // empty: the model's
};

struct GenerateCommandOptions {
  std::string model;
  std::string adapter;   // folder of a LoRA adapter; empty: none
  std::string ids;       // "1, 5 7"
  std::string ids_file;  // a file with ids, instead of `ids`
  std::string precision = "fp32";
  bool stop_at_eos = true;    // also stop at the eos ids of generation_config.json or config.json
  int64_t num_sequences = 1;  // continuations of the prompt, with seeds from generate.sampling.seed
  train::GenerateOptions generate;
};

/// Runs a job; for `benchmark` see JobContext::benchmark.
void train_command(const CommonOptions& common, const std::string& job_path, bool benchmark);
/// The trainer's part of `xffl doctor --job` (job/check_report.h): writes its files below out/ of
/// the folder of job.json.
void check_command(const CommonOptions& common, const std::string& job_path);
void evaluate_command(const CommonOptions& common, const EvaluateOptions& options);
void init_command(const CommonOptions& common, const InitOptions& options);
/// Merges an adapter into its model's weights. Writes the HF folder `output` by rename, with a
/// manifest and the model's tokenizer, and rounds values to `dtype` once. Throws kUsage if `output`
/// exists, kRejected if the adapter does not fit the model.
void merge_command(const MergeOptions& options);
/// Prints JSON lines: {"id": 5} for each new token as soon as the sampler has drawn the token, then
/// {"finish": "stop", ...}.
void generate_command(const CommonOptions& common, const GenerateCommandOptions& options);
void info_command(const CommonOptions& common, bool json);

}  // namespace xffl::train_app
