// Removes old models and updates from the coordinator's own disk.
//
// policy.keep_models and policy.keep_updates limit the global models and the updates in the run's
// folder to those of the newest rounds; by default all stay. The following always stay: the models
// of round 0, the newest published model, its predecessor, and everything of later rounds. Masters
// (float32) follow policy.keep_rounds. With any values of these keys, the newest master, its
// predecessor and the newest round's updates stay, from which facility::RunModels makes a damaged
// newest master or model again. Rejected updates stay for two rounds.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xffl/config/experiment.h"
#include "xffl/history/run_folder.h"

namespace xffl::upkeep {

class LocalRetention {
 public:
  /// `check_writer`: RunHistory::check_writer() of the coordinator, called before each removal.
  LocalRetention(const config::RoundPolicy& policy, const history::RunFolder& folder,
                 std::function<void()> check_writer)
      : policy_(policy), folder_(folder), check_writer_(std::move(check_writer)) {}

  /// Removes the files that no round after `published` needs. The first call searches all earlier
  /// rounds, each later call the rounds since and those with a failed removal. Throws kIo after all
  /// removals when one has failed, the errors of `check_writer`, and kCancelled on `stop`; the next
  /// call then continues.
  void after(int published, const std::stop_token& stop = {});

 private:
  struct Progress {
    int from;                // lower rounds were searched
    std::set<int> failed{};  // of these, the ones with a failed removal
  };
  using Removal = std::function<void(int round)>;

  void remove_until(int last, Progress& progress, const Removal& removal);
  void remove_updates(int round, std::string_view kind, const std::stop_token& stop);
  std::vector<std::filesystem::path> entries(const std::filesystem::path& folder);
  void remove_model(const std::filesystem::path& folder, const std::stop_token& stop);
  void remove(const std::filesystem::path& path, const std::stop_token& stop);

  const config::RoundPolicy& policy_;
  const history::RunFolder& folder_;
  const std::function<void()> check_writer_;
  Progress masters_{0}, models_{1}, updates_{1}, rejected_{1};
  std::string problem_;  // of the last failed removal
};

/// The number of rounds, of `rounds` in all, whose models, updates and masters the disk holds at
/// most, with the round in progress.
struct RoundsOnDisk {
  int models = 0, updates = 0, masters = 0;
};
RoundsOnDisk rounds_on_disk(const config::RoundPolicy& policy, int rounds);

}  // namespace xffl::upkeep
