// metrics.jsonl, one line per step, and the line that a person watches.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "xffl/base/file.h"
#include "xffl/job/job_report.h"
#include "xffl/train/phase_clock.h"

namespace xffl::train {

struct StepMetrics {
  int64_t step = 0;  // over the federation, from 1
  double loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
  int64_t tokens = 0;  // trained on: none in a step that was skipped
  double seconds = 0;
  int64_t memory_bytes = 0;
  PhaseSeconds phases{};

  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

std::string format_metrics(const StepMetrics& metrics);
/// Of validation in mid-training: the loss of each set after `step`.
std::string format_validation(int64_t step, const std::vector<job::ValidationResult>& results);

/// For people and plots: what cannot be written is left out, with one warning.
class MetricsFile {
 public:
  /// Starts an empty file, or keeps what is there of the steps up to `last_step`; an empty path
  /// writes nothing.
  explicit MetricsFile(const std::filesystem::path& path, int64_t last_step = 0);
  void append(const StepMetrics& metrics);
  void append_validation(int64_t step, const std::vector<job::ValidationResult>& results);

 private:
  void append_line(const std::string& line);
  void tell(const std::string& problem);

  std::filesystem::path path_;
  UniqueFd fd_;
  bool told_ = false;
};

/// On a terminal one line with a bar that is rewritten; elsewhere a line every few seconds and at
/// the end.
class Progress {
 public:
  Progress(int64_t num_steps, bool enabled);
  void update(int64_t steps_done, const StepMetrics& metrics);

 private:
  int64_t num_steps_;
  bool enabled_;
  bool terminal_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace xffl::train
