// metrics.jsonl, one line per step, and the progress line on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "phase_clock.h"
#include "xffl/base/file.h"
#include "xffl/job/job_report.h"

namespace xffl::train {

struct StepMetrics {
  int64_t step = 0;  // over the federation, from 1
  double loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
  int64_t tokens = 0;  // trained tokens: 0 in a skipped step
  double seconds = 0;
  int64_t memory_bytes = 0;
  PhaseSeconds phases{};

  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

std::string format_metrics(const StepMetrics& metrics);
/// The line of a mid-training validation: the loss of each set after `step`.
std::string format_validation(int64_t step, const std::vector<job::ValidationResult>& results);

/// For users and plots. A line that cannot be written is dropped; the first failure logs a warning.
class MetricsFile {
 public:
  /// Starts an empty file, or keeps the existing lines of steps up to `last_step`. With an empty
  /// path nothing is written.
  explicit MetricsFile(const std::filesystem::path& path, int64_t last_step = 0);
  void append(const StepMetrics& metrics);
  void append_validation(int64_t step, const std::vector<job::ValidationResult>& results);

 private:
  void append_line(const std::string& line);
  void warn_once(const std::string& problem);

  std::filesystem::path path_;
  UniqueFd fd_;
  bool warned_ = false;
};

/// On a terminal a bar in one line, which is rewritten; otherwise a line every few seconds and at
/// the end.
class ProgressLine {
 public:
  ProgressLine(int64_t num_steps, bool enabled);
  void update(int64_t steps_done, const StepMetrics& metrics);

 private:
  int64_t num_steps_;
  bool enabled_;
  bool terminal_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace xffl::train
