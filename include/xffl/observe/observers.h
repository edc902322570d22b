// Programs and files beside a run: the user's hooks, and the file for Prometheus.
//
// Each observer has a thread of its own, which follows the journal as another reader: the run never
// waits for it, and no failure of an observer reaches the run. The first failure of each observer
// is logged as a warning, later ones as debug messages. An observer of a coordinator that has lost
// its run starts and writes nothing more.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "xffl/base/names.h"
#include "xffl/config/experiment.h"
#include "xffl/history/run_folder.h"
#include "xffl/status/status.h"

namespace xffl::observe {

struct Settings {
  config::Observe observe;
  config::Hooks hooks;
  std::filesystem::path project_folder;  // the folder of the hooks' processes
  std::string project, version;
  int rounds_planned = 0;
  std::function<std::map<FacilityName, status::EndingCredential>()> credentials{};
  // Between two looks at the journal; between two writes of a file; the heartbeat of a file.
  std::chrono::milliseconds look_interval{500}, write_interval{15'000}, heartbeat{60'000};
};

class Observers {
 public:
  /// Starts nothing. `stop`: a user wants the process to end.
  Observers(Settings settings, history::RunFolder folder, std::stop_token stop);
  /// Handles the run's last events. Hooks get twice hooks.timeout for them, and at most 4 s after
  /// `stop`; a running hook is then ended, and its event stays for the next coordinator.
  ~Observers();
  Observers(const Observers&) = delete;
  Observers& operator=(const Observers&) = delete;

  /// This process holds the run, as the writer of `epoch`. Never throws.
  void begin(int64_t epoch) noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace xffl::observe
