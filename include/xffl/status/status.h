// The progress of a run, read from its journal and status file. Writes nothing.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "xffl/base/clock.h"
#include "xffl/history/run_state.h"
#include "xffl/history/status_file.h"

namespace xffl::status {

// A facility's certificate that expires soon, or has expired.
struct EndingCredential {
  Clock::UtcTime ends;
  std::string renew;  // the project's command for a new one; may be empty
};

struct RunStatus {
  std::string state;        // "running", "stopped", "completed", "cancelled"
  std::string coordinator;  // the process that holds the run; empty: none
  int rounds_planned = 0;   // by the experiment; 0: unknown
  std::filesystem::path folder;
  history::RunState run_state;
  history::Activities live;  // of the facilities; empty without a coordinator
  // Not in the run's folder: set by the caller.
  std::map<FacilityName, EndingCredential> credentials{};
};

/// Throws kNotFound when `run_folder` has no journal.
RunStatus read_status(const std::filesystem::path& run_folder, int rounds_planned);

/// Text: one line per round and facility. `now` is the time for the certificates' time left.
std::string format_status(const RunStatus& status, Clock::UtcTime now = SystemClock().utc());
/// JSON; docs/reference/status_json.md lists the keys.
std::string format_status_json(const RunStatus& status);

}  // namespace xffl::status
