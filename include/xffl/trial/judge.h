// The judgement of what a check job found: facts in, results out. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xffl/trial/check_result.h"
#include "xffl/trial/facts.h"

namespace xffl::trial {

// The expectations of the project, and the resources that the check job asked for.
struct Expected {
  std::string facility;
  std::string version;        // of this xffl
  std::string arch;           // of the log-in node, as of `uname -m`; empty: not known
  std::string queue_manager;  // the value of `scheduler`
  int nodes = 1, ranks = 1;   // of the check job
  int gpus_per_node = 0;      // that the configuration requests; 0: none, or not known
  bool own_trainer = false;   // the trainer has no `check`
  bool has_image = false;     // the trainer runs in one
  // As in paths.txt: the work folder and the data, then the site's libraries.
  std::vector<std::string> paths, libraries;
  std::string prepared;       // the folder of the shards of `xffl prepare`, or empty
  uint64_t needed_bytes = 0;  // in the work folder, for a round; 0: not known
  int64_t vocab_size = 0, max_positions = 0;  // of the model
  int64_t steps_per_round = 0;
  std::vector<std::string> validation{};  // the shards of the validation sets
  int64_t validation_samples = 0;         // measured of each set; 0: all
  int round_nodes = 1, round_ranks = 1;   // of a round's job
  std::chrono::seconds walltime{0};       // of a round's job; 0: no limit
  std::chrono::seconds warning{0};        // before the walltime: the trainer stops
  bool resumes = false;                   // policy.on_walltime: resume
};

/// All results, in the order of the parts of the job. Each fact that would make a round fail is an
/// error with its remedy; a fact that makes it slow or late is a warning.
std::vector<CheckResult> judge(const Expected& expected, const Found& found);

/// The lowest major version of NVIDIA's driver for a CUDA toolkit such as "13.0"; 0: not known.
int lowest_driver(const std::string& cuda);

// The speed of a round, from the steps of the check.
struct RoundSpeed {
  double tokens_per_second = 0;  // of the check job
  double hours = 0;              // of the round's steps, without start, loading and validation
  double node_hours = 0;
};
std::optional<RoundSpeed> round_speed(double step_seconds, double step_tokens, int64_t steps,
                                      int nodes);

// The size of a validation set, as a rank has read it.
struct SetSize {
  int64_t sequences = 0, sequence_length = 0;
  bool operator==(const SetSize&) const = default;
};
/// The sizes that the first rank has reported; a shard that its file does not list is left out.
std::vector<SetSize> validation_sizes(const Expected& expected, const Found& found);

/// About the hours of the two validations of a round, before and after its steps, at the
/// `tokens_per_second` of its training. `samples`: measured of each set; 0: all.
double validation_hours(const std::vector<SetSize>& sets, int64_t samples,
                        double tokens_per_second);

/// A sentence about a round of `steps` steps: "a round of 40 steps takes 0.8 h, 1.6 node-hours, and
/// 5 min of validation; the walltime of 12 h suffices"; `suffices` says the last part.
struct RoundForecast {
  std::string text;
  bool suffices = true;
  bool validates_too_long = false;  // the steps would fit, or the first validation does not
};
RoundForecast forecast_round(const RoundSpeed& speed, int64_t steps, double validation_hours,
                             std::chrono::seconds walltime, std::chrono::seconds warning);

}  // namespace xffl::trial
