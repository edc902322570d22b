// The commands of xffl-train, one file each. Each returns after success and throws xffl::Error
// otherwise.
#pragma once

#include <cstdint>
#include <string>

namespace xffl::train_app {

struct CommonOptions {
  std::string device = "auto";
  int threads = 0;  // 0: chosen
};

/// "xffl-train 0.1.0 (torch 2.11.0)".
std::string version_line();

struct EvaluateOptions {
  std::string model;
  std::string tokens;
  std::string precision = "fp32";
  int64_t batch_size = 8;
  bool json = false;
};

struct InitOptions {
  std::string config;
  std::string output;
  std::string tokenizer;
  std::string dtype = "fp32";
  uint64_t seed = 0;
};

void train_command(const CommonOptions& common, const std::string& job_path);
void evaluate_command(const CommonOptions& common, const EvaluateOptions& options);
void init_command(const CommonOptions& common, const InitOptions& options);
void info_command(const CommonOptions& common, bool json);

}  // namespace xffl::train_app
