#include "schema.h"

#include "chain.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::history {

namespace {

constexpr int64_t kApplicationId = 0x7866666c;  // "xffl"

constexpr const char* kSchema = R"sql(
CREATE TABLE events (
  seq      INTEGER PRIMARY KEY CHECK (seq > 0),
  time     TEXT NOT NULL CHECK (length(time) = 24),
  kind     TEXT NOT NULL CHECK (length(kind) BETWEEN 1 AND 64 AND kind NOT GLOB '*[^a-z_]*'),
  round    INTEGER NOT NULL CHECK (round >= 0),
  facility TEXT NOT NULL CHECK (length(facility) <= 32),
  attempt  INTEGER NOT NULL CHECK (attempt >= 0),
  payload  TEXT NOT NULL CHECK (length(payload) >= 2),
  chain    TEXT NOT NULL CHECK (length(chain) = 64 AND chain NOT GLOB '*[^0-9a-f]*')
) STRICT;
CREATE TRIGGER events_in_order BEFORE INSERT ON events
  WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM events)
  BEGIN SELECT raise(ABORT, 'events are appended in order'); END;
CREATE TRIGGER events_never_change BEFORE UPDATE ON events
  BEGIN SELECT raise(ABORT, 'events never change'); END;
CREATE TRIGGER events_never_go BEFORE DELETE ON events
  BEGIN SELECT raise(ABORT, 'events are never removed'); END;
)sql";

[[noreturn]] void corrupt(const Database& database, const std::string& what) {
  throw Error(ErrorKind::kCorrupt, "the journal " + database.path().string() +
                                       " is damaged: " + what + std::string(kRepairAdvice));
}

}  // namespace

bool check_schema(Database& database) {
  const int64_t version = database.integer("PRAGMA user_version");
  const int64_t application = database.integer("PRAGMA application_id");
  if (version == 0 && application == 0 &&
      database.integer("SELECT count(*) FROM sqlite_schema") == 0)
    return false;
  if (application != kApplicationId)
    corrupt(database, "it is a database, but not an xffl journal (application_id " +
                          std::to_string(application) + ")");
  if (version > kSchemaVersion)
    throw Error(ErrorKind::kUnsupported,
                "the journal " + database.path().string() + " has schema version " +
                    std::to_string(version) + ", and this xffl knows versions up to " +
                    std::to_string(kSchemaVersion) + ": use the newer xffl that wrote it");
  if (version < 1) corrupt(database, "schema version " + std::to_string(version));
  return true;
}

void create_or_check_schema(Database& database) {
  if (check_schema(database)) return;
  database.exec("BEGIN IMMEDIATE");
  database.exec(kSchema);
  database.exec(("PRAGMA application_id = " + std::to_string(kApplicationId)).c_str());
  database.exec(("PRAGMA user_version = " + std::to_string(kSchemaVersion)).c_str());
  database.exec("COMMIT");
}

void check_structure(Database& database) {
  const std::string found = database.text("PRAGMA quick_check(1)");
  if (found != "ok") corrupt(database, "SQLite's check says: " + log::printable(found, 300));
}

VerifiedEvents read_verified(Database& database) {
  VerifiedEvents result;
  result.chain = genesis_chain();
  int64_t expected = 1;
  try {
    Statement rows(database,
                   "SELECT seq, time, kind, round, facility, attempt, payload, chain "
                   "FROM events ORDER BY seq");
    for (; rows.step(); ++expected) {
      StoredEvent event{rows.integer(0), rows.text(1),
                        rows.text(2),    static_cast<int>(rows.integer(3)),
                        rows.text(4),    static_cast<int>(rows.integer(5)),
                        rows.text(6)};
      if (event.seq != expected)
        corrupt(database, "event " + std::to_string(expected) + " is missing (the next one is " +
                              std::to_string(event.seq) + ")");
      result.chain = next_chain(result.chain, event);
      if (result.chain != rows.text(7))
        corrupt(database, "event " + std::to_string(expected) +
                              " was changed: its chain hash does not fit its content and the "
                              "events before it");
      result.events.push_back(std::move(event));
    }
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kCorrupt)
      error.add_context("at event " + std::to_string(expected));
    throw;
  }
  return result;
}

void insert(Database& database, const StoredEvent& event, const std::string& chain) {
  Statement row(database,
                "INSERT INTO events (seq, time, kind, round, facility, attempt, payload, chain) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
  row.bind(1, event.seq);
  row.bind(2, event.time_utc);
  row.bind(3, event.kind);
  row.bind(4, int64_t{event.round});
  row.bind(5, event.facility);
  row.bind(6, int64_t{event.attempt});
  row.bind(7, event.payload);
  row.bind(8, chain);
  row.step();
}

}  // namespace xffl::history
