// Proves that a run's published models follow from its journal and its archived updates.
//
// A check compares what can be computed again with what is on record. Each check has one of three
// results: ok, failed, or not checked, with the reason. A check that was not made never counts as
// ok. All functions only read the run's folder, without its lock: the run may go on, be stopped,
// dead, or on a file system that permits no writes. A run that goes on is checked up to the last
// event at the time of the reading.
//
// The checks do not prove that a facility trained what it reports, on its data and with its
// program. Without a signature they do not prove who wrote the journal either: who can write the
// run folder can write a journal that agrees with itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/history/kept_checks.h"
#include "xffl/history/run_folder.h"

namespace xffl::verify {

struct Failure {
  std::string subject;  // the file below the run's folder, or the event
  std::string problem;  // expected and found
};
struct NotChecked {
  std::string reason;
  std::vector<std::string> subjects;  // may be empty: the whole check
};
// One kind of check over the whole run.
struct Check {
  std::string name;     // "weights"
  std::string content;  // what was compared, for users
  int64_t passed = 0;   // subjects that agree
  std::vector<Failure> failures;
  std::vector<NotChecked> not_checked;

  /// "ok", "failed" or "not checked". A check is ok when it has passed and nothing failed; parts
  /// of it may not be checked.
  std::string_view result() const;
};

struct Rounds {
  int first = 1;
  int last = std::numeric_limits<int>::max();
};
struct Options {
  bool read_data = false;                   // hash every file of the models and updates
  std::optional<Rounds> replay;             // compute these rounds again from their updates
  int replay_blocks = 0;                    // random blocks to carry through all rounds
  uint64_t seed = 0;                        // of their choice
  std::filesystem::path allowed_signers{};  // ALLOWED SIGNERS of ssh-keygen(1); empty: no check
  std::filesystem::path scratch = std::filesystem::temp_directory_path();  // of the replay
  std::stop_token stop{};
  std::function<void(const std::string& text)> on_progress = [](const std::string&) {};
};

struct Verification {
  std::string run, project;
  int64_t events = 0;     // that were checked
  std::string chain;      // of the last one
  std::string last_time;  // of the last one
  int rounds_published = 0;
  std::string model_sha256;  // of the newest published model
  bool goes_on = false;      // a coordinator holds the run
  std::vector<Check> checks;

  int64_t num(std::string_view result) const;  // checks with this result
};

/// `project_folder` resolves relative paths of the configuration. Throws kNotFound without a
/// journal, kUnsupported for a journal of a newer release, kCancelled on `stop`, kIo.
Verification verify_run(const history::RunFolder& folder,
                        const std::filesystem::path& project_folder, const Options& options = {});

/// Statements that no check proves.
std::vector<std::string> not_proven();

/// The results for verification.json; `now` is the time of the verification.
std::vector<history::KeptCheck> kept_checks(const Verification& verification, Clock::UtcTime now);

/// One line for each check; one more for each failure and for each reason why a part was not
/// checked.
std::string format_text(const Verification& verification);
/// docs/reference/verify_json.md
std::string format_json(const Verification& verification);

}  // namespace xffl::verify
