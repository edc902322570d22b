// The table, its guards, and reading it back with every check.
#pragma once

#include <string>
#include <vector>

#include "sqlite.h"
#include "xffl/history/store.h"

namespace xffl::history {

/// Makes an empty database a journal; checks that another is one. Throws kUnsupported (newer
/// schema), kCorrupt (another program's database).
void create_or_check_schema(Database& database);

/// As above for readers; false for a database that is still empty.
bool check_schema(Database& database);

/// SQLite's own check of the file's structure. Throws kCorrupt.
void check_structure(Database& database);

struct VerifiedEvents {
  std::vector<StoredEvent> events;
  std::string chain;  // of the last event
};
/// Throws kCorrupt naming the first bad seq.
VerifiedEvents read_verified(Database& database);

void insert(Database& database, const StoredEvent& event, const std::string& chain);

}  // namespace xffl::history
