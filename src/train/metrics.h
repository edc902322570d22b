// The times and numbers of training steps: a clock of a step's phases, metrics.jsonl with one line
// per step, and the progress line on stderr.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "xffl/base/file.h"
#include "xffl/job/job_report.h"

namespace xffl::train {

using SteadyClock = std::chrono::steady_clock;

inline double seconds_between(SteadyClock::time_point begin, SteadyClock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
inline double seconds_since(SteadyClock::time_point begin) {
  return seconds_between(begin, SteadyClock::now());
}

/// The phases of a step: embedding and blocks; final norm, logits and cross-entropy; gradients, and
/// waiting for their reduction; the gradient norm, for clipping; AdamW. Other work (reading
/// batches, waiting for other pipeline stages, exchanges between groups) belongs to no phase.
enum class StepPhase { kForward, kHead, kBackward, kNorm, kAdamw, kOther };
inline constexpr std::array<const char*, 5> kPhaseNames{"forward", "head", "backward", "norm",
                                                        "adamw"};

/// The seconds of the phases before kOther, summed over a step's micro-batches.
struct PhaseSeconds {
  std::array<double, kPhaseNames.size()> seconds{};

  double operator[](StepPhase phase) const { return seconds.at(static_cast<size_t>(phase)); }
  PhaseSeconds& operator+=(const PhaseSeconds& other) {
    for (size_t i = 0; i < seconds.size(); ++i) seconds[i] += other.seconds[i];
    return *this;
  }
};

/// A CPU uses the steady clock. A GPU uses events on the current stream. enter() records an event
/// without waiting; the trainer calls read() after the host has waited for the stream.
class PhaseClock {
 public:
  explicit PhaseClock(at::Device device) : device_(device) {}

  /// Ends the current phase and begins `phase`.
  void enter(StepPhase phase);
  /// Returns the phases that ended since the last call. With a GPU the host must have waited for
  /// the current stream after the last enter().
  PhaseSeconds read();

 private:
  // The start of a phase. The clock reuses events after reading them.
  struct Mark {
    StepPhase phase;
    SteadyClock::time_point time;
    std::optional<c10::Event> event;
  };
  double seconds_between(const Mark& begin, const Mark& end) const;

  at::Device device_;
  std::vector<Mark> marks_;
  std::vector<c10::Event> spare_;
};

struct StepMetrics {
  int64_t step = 0;  // over the federation, from 1
  double loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
  int64_t tokens = 0;  // trained tokens: 0 in a skipped step
  double seconds = 0;
  int64_t memory_bytes = 0;
  PhaseSeconds phases{};
  double accuracy = 0;                  // the share of target tokens with the largest logit
  int64_t job_step = 0, job_steps = 0;  // this job's steps so far, and all its steps
  int64_t samples = 0;                  // trained sequences: 0 in a skipped step
  int ranks = 1;

  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

std::string format_metrics(const StepMetrics& metrics);
/// Formats the line of a mid-training validation: loss and accuracy of each set after `step`.
std::string format_validation(int64_t step, const std::vector<job::ValidationResult>& results);

/// Writes metrics.jsonl for users and plots. Drops a line that cannot be written; the first failure
/// logs a warning.
class MetricsFile {
 public:
  /// Starts an empty file, or keeps the existing lines of steps up to `last_step`. With an empty
  /// path the object writes nothing.
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

/// Shows progress: on a terminal a bar in one line, which the object rewrites; otherwise a line
/// every few seconds and at the end.
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
