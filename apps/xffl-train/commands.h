// The commands of xffl-train, one file each. Each returns after success and throws xffl::Error
// otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "xffl/train/generate_options.h"

namespace xffl::train_app {

struct CommonOptions {
  std::string device = "auto";
  int threads = 0;  // 0: chosen
};

/// LibTorch's errors and warnings come without stack traces from now on, unless
/// TORCH_SHOW_CPP_STACKTRACES is 1.
void leave_out_stack_traces();

/// "xffl-train 0.1.0 (torch 2.11.0)".
std::string version_line();

struct EvaluateOptions {
  std::string model;
  std::string adapter;  // LoRA's, beside the model; empty: none
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
  std::string adapter;   // LoRA's, beside the model; empty: none
  std::string ids;       // "1, 5 7"
  std::string ids_file;  // or a file of the same
  std::string precision = "fp32";
  bool stop_at_eos = true;  // what generation_config.json or config.json calls eos stops, too
  train::GenerateOptions generate;
};

/// `benchmark`: as JobContext's.
void train_command(const CommonOptions& common, const std::string& job_path, bool benchmark);
void evaluate_command(const CommonOptions& common, const EvaluateOptions& options);
void init_command(const CommonOptions& common, const InitOptions& options);
/// Writes a model with the adapter in its weights.
void merge_command(const MergeOptions& options);
/// Prints {"id": 5} for each new token as soon as it is drawn, then {"finish": "stop", ...}: JSON
/// lines.
void generate_command(const CommonOptions& common, const GenerateCommandOptions& options);
void info_command(const CommonOptions& common, bool json);

}  // namespace xffl::train_app
