// The results of `xffl verify`, kept in the run's folder for `xffl report`.
//
// The file verification.json has the newest result of each check. A check that was not made does
// not replace an earlier result: a replay of all rounds stays on record when a user later verifies
// without a replay. Who can write the run's folder can write this file; a report shows it as what a
// user was told, not as a proof.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::history {

struct KeptCheck {
  std::string name;           // "weights"
  std::string content;        // what was compared, for users
  std::string result;         // "ok", "failed", "not checked"
  std::string checked_at;     // UTC, as in events
  int64_t events = 0;         // of the journal, which the check covers
  std::string last_event_at;  // the time of the last one
  int64_t passed = 0;         // subjects that agree
  int64_t failed = 0;
  std::vector<std::string> failures;     // the first ones: "file: problem"
  std::vector<std::string> not_checked;  // reasons
  bool operator==(const KeptCheck&) const = default;
};

/// `newer` over `earlier`, by name.
std::vector<KeptCheck> merged(std::vector<KeptCheck> earlier, const std::vector<KeptCheck>& newer);

std::string format_kept_checks(const std::vector<KeptCheck>& checks);
/// Throws kCorrupt, with `origin`.
std::vector<KeptCheck> parse_kept_checks(std::string_view text, std::string_view origin);
/// None when the file does not exist. Throws kCorrupt, kIo.
std::vector<KeptCheck> read_kept_checks(const std::filesystem::path& path);

}  // namespace xffl::history
