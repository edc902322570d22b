// Reads a whole journal as far as it is intact. A problem is a value: the reader shows it beside
// other findings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "xffl/history/store.h"

namespace xffl::history {

struct JournalAudit {
  std::vector<StoredEvent> events;  // up to the first damage
  std::vector<std::string> chains;  // of these events
  std::string damage;               // of the database; empty: none
  int64_t mirrored = 0;             // events that the mirror has, too
  std::string mirror_damage;        // the first line that differs from its event; empty: none
};

/// Compares the structure of the database, its chain and its mirror. Reads without the lock, also
/// while a coordinator writes. Throws kNotFound, kUnsupported (newer schema), kIo.
JournalAudit audit_journal(const std::filesystem::path& path);

}  // namespace xffl::history
