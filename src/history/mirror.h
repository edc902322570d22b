// Every event once more: a text file of one JSON object a line beside the database, for repair()
// when the database is damaged. It follows the database: after a crash it may lack the last event,
// which the next opening adds.
#pragma once

#include <filesystem>
#include <string>

#include "schema.h"
#include "xffl/base/file.h"

namespace xffl::history {

/// journal.jsonl of journal.db.
std::filesystem::path mirror_path(const std::filesystem::path& journal);

/// The events of the mirror up to the first line that is damaged or does not fit its chain; none
/// when there is no mirror.
VerifiedEvents read_mirror(const std::filesystem::path& mirror);

class Mirror {
 public:
  /// Brings the mirror up to date with `truth`. Throws kCorrupt when the mirror goes on where the
  /// database ends: the database has lost events.
  Mirror(const std::filesystem::path& journal, const VerifiedEvents& truth);

  /// Durable on return. The database has the event already: a failure is logged, and the mirror is
  /// made anew, of `before` and the event, at the next one.
  void append(const VerifiedEvents& before, const StoredEvent& event, const std::string& chain);

 private:
  void rewrite(const VerifiedEvents& truth);

  const std::filesystem::path path_;
  UniqueFd fd_;  // empty after a failure
};

}  // namespace xffl::history
