// What a run is doing, from its journal: reads, never writes.
#pragma once

#include <filesystem>
#include <string>

#include "xffl/round/history.h"
#include "xffl/round/live.h"

namespace xffl::observe {

struct RunStatus {
  std::string state;        // "running", "stopped", "completed", "cancelled"
  std::string coordinator;  // who runs it now; empty: nobody
  int rounds_planned = 0;   // of the experiment; 0 when unknown
  std::filesystem::path folder;
  round::History history;
  round::Live live;  // what facilities do now; empty when nobody runs
};

/// Throws kNotFound when `run_folder` has no journal.
RunStatus read_status(const std::filesystem::path& run_folder, int rounds_planned);

/// For people: one line per round and facility.
std::string format_status(const RunStatus& status);
/// For programs; docs/formats.md names the keys.
std::string format_status_json(const RunStatus& status);

}  // namespace xffl::observe
