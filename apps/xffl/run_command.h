// xffl run: the federation.
#pragma once

#include <CLI/CLI.hpp>
#include <mutex>

#include "project.h"
#include "xffl/round/federation.h"

namespace xffl {

void add_run_command(CLI::App& app);

/// Shows training and finished rounds as they happen: a live line on a terminal, a line now and
/// then in a pipe.
class RoundDisplay {
 public:
  explicit RoundDisplay(int num_rounds);
  round::Observer observer();

 private:
  void show_training(int round, const FacilityName& facility, const std::string& metrics_line);
  void show_round(int round, const std::vector<round::Accepted>& participants, double seconds);

  int num_rounds_;
  bool terminal_;
  std::map<FacilityName, std::string> live_;
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace xffl
