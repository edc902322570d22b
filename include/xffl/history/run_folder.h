// Where a run's files lie on the coordinator's machine (DESIGN: project folder).
//
//   <workdir>/runs/0003/  journal.db  config.resolved.yaml  coordinator.log  CURRENT ->
//   r0002/global
//     r0002/global/  r0002/global.packed/  r0002/master/  r0002/<facility>/{job.json, job.sh,
//     report.json, update/, metrics.jsonl}
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "xffl/base/names.h"

namespace xffl::history {

class RunFolder {
 public:
  RunFolder(std::filesystem::path runs, RunName run)
      : path_(runs / run.str()), run_(std::move(run)) {}

  const std::filesystem::path& path() const { return path_; }
  const RunName& run() const { return run_; }
  std::filesystem::path journal() const { return path_ / "journal.db"; }
  std::filesystem::path config() const { return path_ / "config.resolved.yaml"; }
  std::filesystem::path log() const { return path_ / "coordinator.log"; }
  std::filesystem::path current() const { return path_ / "CURRENT"; }
  std::filesystem::path requests() const { return path_ / "requests"; }
  std::filesystem::path login() const { return path_ / "login.sock"; }
  std::filesystem::path live() const { return path_ / "live.json"; }
  std::filesystem::path round(int round) const;
  std::filesystem::path global(int round) const { return this->round(round) / "global"; }
  std::filesystem::path master(int round) const { return this->round(round) / "master"; }
  /// The global model as its differences from the one before, while a round needs it.
  std::filesystem::path packed(int round) const { return this->round(round) / "global.packed"; }
  /// With LoRA, where global and master are adapters: the model under them.
  std::filesystem::path adapted() const { return this->round(0) / "adapted"; }
  std::filesystem::path facility(int round, const FacilityName& name) const {
    return this->round(round) / name.str();
  }

 private:
  std::filesystem::path path_;
  RunName run_;
};

/// The newest run under `runs`; nothing when there is none.
std::optional<RunName> latest_run(const std::filesystem::path& runs);
/// The name after the newest: "0001" first.
RunName next_run(const std::filesystem::path& runs);

}  // namespace xffl::history
