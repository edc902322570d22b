// The progress of a run, read from its journal and status file. Writes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/json.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"

namespace xffl::status {

// A facility's certificate that expires soon, or has expired.
struct EndingCredential {
  Clock::UtcTime ends;
  std::string renew;  // the project's command for a new certificate; may be empty
};

struct RunStatus {
  std::string state;        // "running", "stopped", "completed", "cancelled"
  std::string coordinator;  // the process that holds the run; empty: none
  int rounds_planned = 0;   // by the experiment; 0: unknown
  std::filesystem::path folder;
  history::RunState run_state;
  history::Activities live;  // of the facilities; empty without a coordinator
  /// The coordinator's last sign of life; empty without a coordinator, or before its first sign.
  std::optional<Clock::UtcTime> last_sign{};
  // Set by the caller, because the run's folder does not hold certificates.
  std::map<FacilityName, EndingCredential> credentials{};
};

enum class Rounds {
  kAll,
  kNewest,  // for format_status(); the time does not grow with the number of rounds
};
/// Throws kNotFound when `run_folder` has no journal.
RunStatus read_status(const std::filesystem::path& run_folder, int rounds_planned,
                      Rounds rounds = Rounds::kAll);

/// A coordinator without a sign of life for so long is frozen, or its disk hangs.
inline constexpr std::chrono::minutes kSilence(5);
/// The sentence for users about a silent coordinator; empty when `last_sign` is absent or recent.
std::string silence_text(const std::string& coordinator,
                         const std::optional<Clock::UtcTime>& last_sign, Clock::UtcTime now);

/// Text: one line per round and facility, for the newest rounds. The certificates' time left counts
/// from `now`.
std::string format_status(const RunStatus& status, Clock::UtcTime now = SystemClock().utc());
/// The first line of format_status(): the run, its state and the number of published rounds.
std::string headline(const RunStatus& status);
/// JSON; docs/reference/status_json.md lists the keys. In one line if `one_line`.
std::string format_status_json(const RunStatus& status, bool one_line = false);

struct GlobalLoss {
  int round = 0;  // of the global model; 0: the initial model
  FacilityName facility;
  std::string set;
  int64_t tokens = 0;   // predicted tokens
  double nll = 0;       // mean per token, in nats
  double accuracy = 0;  // share of the tokens; 0 also if not measured
};

/// The validation losses of the global models, by round, then by facility, then in the order of the
/// report. A job evaluates its input model before it trains: the reports of round k + 1 have the
/// losses of the model of round k. The evaluation (policy.evaluate_last) has the losses of the last
/// model. A facility that was missing in a round has no loss.
std::vector<GlobalLoss> global_losses(const history::RunState& run_state);

/// The list `validation` of `xffl status --json` and `xffl report --json`.
Json losses_json(const std::vector<GlobalLoss>& losses);

/// A table: a row for each published model, a column for each facility's set, cells "loss
/// (perplexity)", or "-" for a missing loss. Empty if no facility has reported a loss. Names the
/// first round when `run_state` lacks earlier rounds.
std::string format_global_losses(const history::RunState& run_state);
/// The table of the whole run in `journal`. Reads one event at a time and keeps the table's cells
/// only: the reports of a long run would take hundreds of megabytes. Throws as visit_events() and
/// decode().
std::string format_global_losses(const std::filesystem::path& journal);

}  // namespace xffl::status
