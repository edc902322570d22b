#include "metrics.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::train {
namespace {

constexpr std::chrono::seconds kLineInterval{5};
constexpr std::chrono::milliseconds kBarInterval{100};
constexpr int64_t kBarWidth = 24;
constexpr uint64_t kMaxMetricsBytes = uint64_t{1} << 30;

// Returns the lines of steps up to `last_step`; drops a torn last line.
std::string lines_up_to(const std::filesystem::path& path, int64_t last_step) {
  if (last_step == 0 || !std::filesystem::exists(path)) return "";
  const std::string text = read_file(path, kMaxMetricsBytes);
  std::string kept;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    try {
      if (parse_json(line, path.string()).at("step").get<int64_t>() <= last_step)
        kept += line + "\n";
    } catch (const std::exception&) {
      continue;  // not written by MetricsFile
    }
  }
  return kept;
}

}  // namespace

void PhaseClock::enter(StepPhase phase) {
  if (!marks_.empty() && marks_.back().phase == phase) return;
  Mark mark{phase, {}, {}};
  if (device_.is_cuda()) {
    if (spare_.empty()) spare_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    mark.event = std::move(spare_.back());
    spare_.pop_back();
    mark.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  } else {
    mark.time = SteadyClock::now();
  }
  marks_.push_back(std::move(mark));
}

double PhaseClock::seconds_between(const Mark& begin, const Mark& end) const {
  if (begin.event) return begin.event->elapsedTime(*end.event) * 1e-3;
  return train::seconds_between(begin.time, end.time);
}

PhaseSeconds PhaseClock::read() {
  PhaseSeconds result;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    const auto phase = static_cast<size_t>(marks_[i].phase);
    if (phase < result.seconds.size())
      result.seconds[phase] += seconds_between(marks_[i], marks_[i + 1]);
    if (marks_[i].event) spare_.push_back(std::move(*marks_[i].event));
  }
  if (marks_.size() > 1) marks_.erase(marks_.begin(), marks_.end() - 1);
  return result;
}

std::string format_metrics(const StepMetrics& metrics) {
  Json json;
  json["step"] = metrics.step;
  json["job_step"] = metrics.job_step;
  json["job_steps"] = metrics.job_steps;
  json["loss"] = metrics.loss;
  json["accuracy"] = metrics.accuracy;
  json["lr"] = metrics.learning_rate;
  json["grad_norm"] = metrics.grad_norm;
  json["tokens_per_second"] = metrics.tokens_per_second();
  json["tokens_per_second_per_rank"] = metrics.tokens_per_second() / metrics.ranks;
  json["samples_per_second"] =
      metrics.seconds > 0 ? static_cast<double>(metrics.samples) / metrics.seconds : 0;
  json["tokens"] = metrics.tokens;
  json["memory_bytes"] = metrics.memory_bytes;
  json["seconds"] = metrics.seconds;
  for (size_t i = 0; i < kPhaseNames.size(); ++i)
    json["phase_seconds"][kPhaseNames[i]] = metrics.phases.seconds[i];
  return json.dump() + "\n";
}

std::string format_validation(int64_t step, const std::vector<job::ValidationResult>& results) {
  Json losses = Json::object(), accuracies = Json::object();
  for (const job::ValidationResult& result : results) {
    losses[result.name] = result.nll_after;
    accuracies[result.name] = result.accuracy_after;
  }
  const Json json{{"step", step},
                  {"validation", std::move(losses)},
                  {"validation_accuracy", std::move(accuracies)}};
  return json.dump() + "\n";
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t last_step) : path_(path) {
  if (path_.empty()) return;
  try {
    make_dirs(path_.parent_path());
    const std::string kept = lines_up_to(path_, last_step);
    fd_ = open_file(path_, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
    if (!kept.empty()) append_line(kept);
  } catch (const std::exception& error) {
    warn_once(error.what());
  }
}

void MetricsFile::append(const StepMetrics& metrics) { append_line(format_metrics(metrics)); }

void MetricsFile::append_validation(int64_t step,
                                    const std::vector<job::ValidationResult>& results) {
  append_line(format_validation(step, results));
}

// Truncates a failed write, so that the file holds whole lines only. Later lines may fit again.
void MetricsFile::append_line(const std::string& line) {
  if (!fd_) return;
  const off_t size = ::lseek(fd_.get(), 0, SEEK_END);
  try {
    write_all(fd_.get(), std::as_bytes(std::span(line)), path_);
  } catch (const Error& error) {
    const bool is_whole = size >= 0 && ::ftruncate(fd_.get(), size) == 0;
    warn_once(error.what() + std::string(is_whole ? "" : " (the file may end in a torn line)"));
  }
}

void MetricsFile::warn_once(const std::string& problem) {
  if (std::exchange(warned_, true)) return;
  log::warning("metrics not written: training continues without them", {{"problem", problem}});
}

ProgressLine::ProgressLine(int64_t num_steps, bool enabled)
    : num_steps_(num_steps), enabled_(enabled), terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressLine::update(int64_t steps_done, const StepMetrics& metrics) {
  const auto now = std::chrono::steady_clock::now();
  const bool last = steps_done == num_steps_;
  if (!enabled_ || (!last && steps_done > 1 &&
                    now - last_ < (terminal_ ? std::chrono::nanoseconds(kBarInterval)
                                             : std::chrono::nanoseconds(kLineInterval)))) {
    return;
  }
  last_ = now;
  std::string bar;
  if (terminal_) {
    bar.assign(static_cast<size_t>(kBarWidth), '.');
    std::fill_n(bar.begin(), kBarWidth * steps_done / num_steps_, '#');
    bar += "  ";
  }
  std::fprintf(
      stderr,
      "%s%sstep %lld/%lld  loss %.4f  accuracy %.3f  lr %.2e  grad norm %.3f  %.0f tokens/s  "
      "%.2f GB%s",
      terminal_ ? "\r\033[K" : "", bar.c_str(), static_cast<long long>(steps_done),
      static_cast<long long>(num_steps_), metrics.loss, metrics.accuracy, metrics.learning_rate,
      metrics.grad_norm, metrics.tokens_per_second(),
      static_cast<double>(metrics.memory_bytes) * 1e-9, terminal_ && !last ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace xffl::train
