// What a run is doing, from its journal: reads, never writes.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "xffl/base/clock.h"
#include "xffl/history/run_state.h"
#include "xffl/history/status_file.h"

namespace xffl::status {

// A facility's certificate that ends soon, or has ended.
struct EndingCredential {
  Clock::UtcTime ends;
  std::string renew;  // the command that the project names for it; may be empty
};

struct RunStatus {
  std::string state;        // "running", "stopped", "completed", "cancelled"
  std::string coordinator;  // who runs it now; empty: nobody
  int rounds_planned = 0;   // of the experiment; 0 when unknown
  std::filesystem::path folder;
  history::RunState run_state;
  history::Activities live;  // what facilities do now; empty when nobody runs
  // Not in the run's folder: whoever can look at credentials puts them here.
  std::map<FacilityName, EndingCredential> credentials{};
};

/// Throws kNotFound when `run_folder` has no journal.
RunStatus read_status(const std::filesystem::path& run_folder, int rounds_planned);

/// For people: one line per round and facility. `now` is what the ends of credentials are told
/// against.
std::string format_status(const RunStatus& status, Clock::UtcTime now = SystemClock().utc());
/// For programs; docs/reference/status_json.md names the keys.
std::string format_status_json(const RunStatus& status);

}  // namespace xffl::status
