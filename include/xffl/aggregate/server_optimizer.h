// The server optimizers: the rules from the weighted mean of a round's updates to the next float32
// master.
//
// A row of the table in src/aggregate/server_optimizer.cc registers an optimizer. These parts
// follow from the row: the value of aggregation.server_optimizer in xffl.yaml, the keys of the
// optimizer's settings with their checks and their documentation, the files of its state, and its
// call in server_step().
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace xffl::aggregate {

// A number that the user may set: aggregation.<optimizer>.<name> in xffl.yaml.
struct ServerSetting {
  std::string_view name;
  std::string_view help;
  double default_value = 0;
  double min = 0;
  double max = 1;
  bool below_max = false;  // `max` itself is excluded
};

// A piece of a tensor in the server step; all its spans but `state` and `settings` have one length.
struct ServerPiece {
  bool deltas = true;               // `values` holds the mean of deltas, else of weights
  std::span<const float> master{};  // empty when the step does not read the master
  // For each of ServerOptimizer::state, the values of the last step (zeros in the first step); the
  // step replaces them by its own values.
  std::span<const std::span<float>> state{};
  std::span<const double> settings{};  // in the order of ServerOptimizer::settings
  std::span<double> values{};          // in: the mean; out: the next master, not rounded
};

struct ServerOptimizer {
  std::string_view name;  // the value of aggregation.server_optimizer
  std::string_view help;  // the rule, for the reference of keys
  std::span<const ServerSetting> settings{};
  // The names of float32 tensors that the optimizer keeps for each tensor of the model. The
  // master's folder holds them as <name>.safetensors, with the names and shapes of the model's
  // tensors.
  std::span<const std::string_view> state{};
  // False: the mean of weights alone gives the next master, so the step does not read the old one.
  bool reads_master_for_weights = true;
  /// Computes one piece. Threads call it at the same time; the result may depend on nothing but the
  /// piece.
  void (*step)(const ServerPiece& piece) = nullptr;

  std::vector<double> defaults() const;  // of the settings
};

/// All optimizers; the first one is the default.
std::span<const ServerOptimizer> server_optimizers();
/// Throws kConfig with the known names.
const ServerOptimizer& server_optimizer(std::string_view name);

// An optimizer with the values of its settings.
struct ServerRule {
  const ServerOptimizer& optimizer = server_optimizers().front();
  std::vector<double> settings = optimizer.defaults();
};

}  // namespace xffl::aggregate
