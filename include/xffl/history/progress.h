// A run's validation losses and node-seconds by global model: the figures that the rules of
// `policy.stop_when` compare.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/history/events.h"

namespace xffl::history {

/// From the journal's events, in their order. The memory grows by 16 bytes a round.
///
/// A round's reports measure the round's input model: the loss of model k is known when round k + 1
/// is published.
class Progress {
 public:
  struct Model {
    /// The mean validation loss in nats over all validation sets, each with its newest measurement;
    /// absent: not measured yet.
    std::optional<double> loss;
    double node_seconds = 0;  // spent until the model was published
  };

  /// `node_seconds`: of all jobs, up to and with this event. A sum over all facilities, so that
  /// add() calls it at a publication only: a replay adds hundreds of thousands of events.
  void add(const RecordedEvent& recorded, const std::function<double()>& node_seconds);

  /// By the number of the global model; 0 is the initial model.
  const std::vector<Model>& models() const { return models_; }
  /// The first model whose loss can be compared with the later ones: the facilities and their
  /// validation sets are the same since.
  size_t first_comparable() const { return first_comparable_; }
  const std::string& created_utc() const { return created_utc_; }

 private:
  using Set = std::pair<FacilityName, std::string>;

  void publish(int round, double node_seconds);

  std::map<Set, double> losses_;    // the newest ones
  std::map<Set, double> in_round_;  // of the round in progress
  std::set<FacilityName> left_;
  std::vector<Model> models_{Model{}};
  size_t first_comparable_ = 0;
  std::string created_utc_;
};

}  // namespace xffl::history
