// The progress of a federation's rounds on stderr and stdout.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "xffl/run/federation.h"

namespace xffl {

/// Shows the activity of the facilities, the steps of their trainings and finished rounds: a live
/// line on a terminal, a line every few seconds in a pipe.
class RoundDisplay {
 public:
  /// `live_file` is the run's live.json, read each second on a terminal; empty: none.
  explicit RoundDisplay(int num_rounds, std::filesystem::path live_file = {});
  ~RoundDisplay();
  facility::Observer observer();

 private:
  void show_training(int round, const FacilityName& facility, const std::string& metrics_line);
  void show_round(int round, const std::vector<history::Accepted>& participants, double seconds);
  std::string line(int round) const;

  const int num_rounds_;
  const bool terminal_;
  const std::filesystem::path live_file_;
  std::mutex mutex_;                               // guards the members below
  std::map<FacilityName, std::string> live_;       // activity, or the last step
  std::map<FacilityName, std::string> trainings_;  // the last step of this round
  std::chrono::steady_clock::time_point last_line_;
  std::jthread watch_;
};

/// Runs a federation of this machine in `folder`, which is created, with a display of its rounds.
run::Outcome run_with_display(const config::Experiment& experiment,
                              const history::RunFolder& folder, std::stop_token stop);

}  // namespace xffl
