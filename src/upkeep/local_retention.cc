#include "xffl/upkeep/local_retention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/block_hashes.h"

namespace xffl::upkeep {
namespace {

namespace fs = std::filesystem;

// The packed model of the next round is the difference of the last two.
constexpr int kModelsInUse = 2;
// A facility may send a rejected update in each round. Users look at the newest ones.
constexpr int kRejectedRounds = 2;

}  // namespace

void LocalRetention::after(int published, const std::stop_token& stop) {
  for (; masters_from_ < published - policy_.keep_rounds; ++masters_from_)
    remove_model(folder_.master(masters_from_), stop);
  if (policy_.keep_models > 0)
    for (const int kept = std::max(policy_.keep_models, kModelsInUse);
         models_from_ <= published - kept; ++models_from_)
      remove_model(folder_.global(models_from_), stop);
  if (policy_.keep_updates > 0)
    for (; updates_from_ <= published - policy_.keep_updates; ++updates_from_)
      remove_updates(updates_from_, "update", stop);
  for (; rejected_from_ <= published - kRejectedRounds; ++rejected_from_)
    remove_updates(rejected_from_, "refused-a", stop);
}

// "update" is an update with its block hashes, and updates that are incomplete ("update.e7") or
// were damaged ("update.damaged" of earlier releases); "refused-a" are rejected updates. The job's
// script, report and metrics stay.
void LocalRetention::remove_updates(int round, std::string_view kind,
                                    const std::stop_token& stop) const {
  std::error_code none;
  std::vector<fs::path> updates;
  for (const auto& facility : fs::directory_iterator(folder_.round(round), none))
    for (const auto& entry : fs::directory_iterator(facility.path(), none)) {
      const std::string name = entry.path().filename().string();
      const std::string_view rest =
          std::string_view(name).substr(std::min(name.size(), kind.size()));
      if (!name.starts_with(kind)) continue;
      if (kind != "update" || rest.empty() || rest.starts_with('.'))
        updates.push_back(entry.path());
    }
  for (const fs::path& update : updates) remove(update, stop);
}

void LocalRetention::remove_model(const fs::path& folder, const std::stop_token& stop) const {
  for (const fs::path& path : {folder, checkpoint::block_hashes_path(folder)}) remove(path, stop);
}

void LocalRetention::remove(const fs::path& path, const std::stop_token& stop) const {
  std::error_code problem;
  if (!fs::exists(fs::symlink_status(path, problem))) return;
  if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
  check_writer_();
  fs::remove_all(path, problem);
  if (problem)
    log::warning("old files were not removed from this machine",
                 {{"path", path.string()}, {"problem", problem.message()}});
}

RoundsOnDisk rounds_on_disk(const config::RoundPolicy& policy, int rounds) {
  const auto kept = [](int limit, int all) { return limit == 0 ? all : std::min(limit, all); };
  const int models = policy.keep_models == 0 ? 0 : std::max(policy.keep_models, kModelsInUse) + 2;
  const int updates = policy.keep_updates == 0 ? 0 : policy.keep_updates + 1;
  return {.models = kept(models, rounds + 1),
          .updates = kept(updates, rounds),
          .masters = kept(policy.keep_rounds + 2, rounds + 1)};
}

}  // namespace xffl::upkeep
