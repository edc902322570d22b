#include "xffl/upkeep/local_retention.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "xffl/base/error.h"
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
  const Removal master = [&](int round) { remove_model(folder_.master(round), stop); };
  const Removal model = [&](int round) { remove_model(folder_.global(round), stop); };
  const Removal updates = [&](int round) { remove_updates(round, "update", stop); };
  const Removal rejected = [&](int round) { remove_updates(round, "refused-a", stop); };
  remove_until(published - policy_.keep_rounds - 1, masters_, master);
  if (policy_.keep_models > 0)
    remove_until(published - std::max(policy_.keep_models, kModelsInUse), models_, model);
  if (policy_.keep_updates > 0) remove_until(published - policy_.keep_updates, updates_, updates);
  remove_until(published - kRejectedRounds, rejected_, rejected);
  if (masters_.failed.empty() && models_.failed.empty() && updates_.failed.empty() &&
      rejected_.failed.empty())
    return;
  throw Error(ErrorKind::kIo, "old files stay on this machine: " + problem_);
}

// A failure of one round holds up no other round.
void LocalRetention::remove_until(int last, Progress& progress, const Removal& removal) {
  const auto try_round = [&](int round) {
    try {
      removal(round);
      progress.failed.erase(round);
    } catch (const std::filesystem::filesystem_error& error) {
      progress.failed.insert(round);
      problem_ = error.what();
    }
  };
  for (const int round : std::set<int>(progress.failed)) try_round(round);
  for (; progress.from <= last; ++progress.from) try_round(progress.from);
}

// "update" is an update with its block hashes, and updates that are incomplete ("update.e7") or
// were damaged ("update.damaged" of earlier releases); "refused-a" are rejected updates. The job's
// script, report and metrics stay.
void LocalRetention::remove_updates(int round, std::string_view kind, const std::stop_token& stop) {
  std::vector<fs::path> updates;
  for (const fs::path& facility : entries(folder_.round(round)))
    for (const fs::path& entry : entries(facility)) {
      const std::string name = entry.filename().string();
      const std::string_view rest =
          std::string_view(name).substr(std::min(name.size(), kind.size()));
      if (!name.starts_with(kind)) continue;
      if (kind != "update" || rest.empty() || rest.starts_with('.')) updates.push_back(entry);
    }
  for (const fs::path& update : updates) remove(update, stop);
}

// The paths in a folder; none for a file, and for a folder that is absent.
std::vector<fs::path> LocalRetention::entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code problem;
  fs::directory_iterator entry(folder, problem);
  for (; !problem && entry != fs::directory_iterator(); entry.increment(problem))
    paths.push_back(entry->path());
  if (problem && problem != std::errc::not_a_directory &&
      problem != std::errc::no_such_file_or_directory)
    throw fs::filesystem_error("cannot list", folder, problem);
  return paths;
}

void LocalRetention::remove_model(const fs::path& folder, const std::stop_token& stop) {
  for (const fs::path& path : {folder, checkpoint::block_hashes_path(folder)}) remove(path, stop);
}

void LocalRetention::remove(const fs::path& path, const std::stop_token& stop) {
  if (!fs::exists(fs::symlink_status(path))) return;
  if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
  check_writer_();
  fs::remove_all(path);
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
