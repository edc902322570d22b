#include "round_display.h"

#include <algorithm>
#include <cstdio>

#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/text_width.h"
#include "xffl/history/run_folder.h"

namespace xffl {
namespace {

constexpr std::chrono::seconds kLineInterval{5};

std::string format(const char* pattern, auto... values) {
  char text[200];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

// "step 12 of 40  loss 5.1234  1234 tokens/s" from a line of metrics.jsonl; empty for a line
// without these metrics.
std::string describe(const std::string& metrics_line) try {
  const Json json = parse_json(metrics_line, "metrics.jsonl");
  JsonObject line(json, "metrics.jsonl");
  return format("step %lld  loss %.4f  %.0f tokens/s", static_cast<long long>(line.integer("step")),
                line.number("loss"), line.number_or("tokens_per_second", 0));
} catch (const Error&) {  // a foreign trainer may write other metrics
  return "";
}

}  // namespace

RoundDisplay::RoundDisplay(int num_rounds, std::filesystem::path live_file)
    : num_rounds_(num_rounds),
      terminal_(log::live_line_width() > 0),
      live_file_(std::move(live_file)) {
  if (!terminal_ || live_file_.empty()) return;
  watch_ = std::jthread([this](const std::stop_token& end) {
    while (SystemClock().sleep(std::chrono::seconds(1), end)) {
      const history::Activities live = history::read_activities(live_file_);
      const std::lock_guard lock(mutex_);
      if (live.empty() || end.stop_requested()) continue;
      for (const auto& [name, facility] : live) {
        const auto step = trainings_.find(name);
        const bool trains = facility.activity.starts_with("running") && step != trainings_.end();
        live_[name] = trains ? step->second : log::printable(facility.activity);
      }
      log::set_live_line(line(live.begin()->second.round));
    }
  });
}

RoundDisplay::~RoundDisplay() {
  watch_.request_stop();
  if (watch_.joinable()) watch_.join();
  log::set_live_line("");
}

facility::Observer RoundDisplay::observer() {
  return {.on_training = [this](int round, const FacilityName& facility,
                                const std::string& line) { show_training(round, facility, line); },
          .on_round = [this](int round, const std::vector<history::Accepted>& participants,
                             double seconds) { show_round(round, participants, seconds); }};
}

// On a narrow terminal each facility gets an equal share of the width.
std::string RoundDisplay::line(int round) const {
  const std::string head =
      round > num_rounds_ ? "last evaluation" : format("round %d of %d", round, num_rounds_);
  const auto with = [&](size_t share) {
    std::string text = head;
    for (const auto& [name, activity] : live_)
      text += cut_to_width("  | " + name.str() + ": " + activity, share);
    return text;
  };
  const std::string whole = with(std::string::npos / 2);
  const size_t width = log::live_line_width();
  if (width == 0 || display_width(whole) <= width) return whole;
  return with(std::max<size_t>((width - std::min(width, head.size())) / live_.size(), 16));
}

void RoundDisplay::show_training(int round, const FacilityName& facility,
                                 const std::string& metrics_line) {
  const std::string text = describe(metrics_line);
  if (text.empty()) return;
  const std::lock_guard lock(mutex_);
  live_[facility] = trainings_[facility] = text;
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    log::set_live_line(line(round));
  } else if (now - last_line_ >= kLineInterval) {
    std::fprintf(stderr, "%s\n", line(round).c_str());
    last_line_ = now;
  }
}

void RoundDisplay::show_round(int round, const std::vector<history::Accepted>& participants,
                              double seconds) {
  const std::lock_guard lock(mutex_);
  live_.clear();
  trainings_.clear();
  log::set_live_line("");
  std::string line = format("round %d of %d  %.1f s", round, num_rounds_, seconds);
  for (const history::Accepted& update : participants) {
    line += format("  | %s: %lld tokens, loss %.4f", update.facility.str().c_str(),
                   static_cast<long long>(update.report.tokens), update.report.train_loss);
    for (const job::ValidationResult& result : update.report.validation) {
      line += format(", %s %.4f", result.name.c_str(), result.nll_before);
      if (job::is_measured_after(update.report, result))
        line += format(" -> %.4f", result.nll_after);
    }
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

run::Outcome run_with_display(const config::Experiment& experiment,
                              const history::RunFolder& folder, std::stop_token stop) {
  make_dirs(folder.path());
  log::set_file(folder.log());
  SystemClock clock;
  facility::Services services = facility::make_services(clock, experiment.project_folder);
  RoundDisplay display(experiment.rounds);
  return run::run_federation(experiment, folder, services, stop, display.observer());
}

}  // namespace xffl
