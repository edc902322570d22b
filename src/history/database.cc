#include <sqlite3.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <system_error>

#include "store_parts.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::history {
namespace {

// The end of every message about a damaged database.
constexpr std::string_view kRepairAdvice = "; `xffl journal repair` makes it again from its mirror";
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

// Finds the events of the run as a whole among those of many rounds. Journals of earlier releases
// get the index when they are opened for writing.
constexpr const char* kRunIndex =
    "CREATE INDEX IF NOT EXISTS events_of_run ON events (round) WHERE round = 0";

constexpr int kBusyTimeoutMs = 10'000;  // only readers and their checkpoints can be in the way

// SQLite's busy handler of a writer that must not give up. Its pauses become longer, because each
// try is a request to the server of a network file system.
int wait_for_lock(void* database, int earlier_calls) {
  constexpr int kLongestPauseMs = 100, kCallsInTenSeconds = 150, kCallsInAnHour = 40'000;
  if (earlier_calls % kCallsInAnHour == kCallsInTenSeconds)
    log::warning("the journal's database is locked: the run waits",
                 {{"journal", static_cast<const Database*>(database)->path().string()}});
  ::sqlite3_sleep(std::min(earlier_calls + 1, kLongestPauseMs));
  return 1;
}

struct Failure {
  int code;  // SQLite's primary result code
  ErrorKind kind;
  std::string_view advice{};
};
constexpr std::string_view kFreeSpace = "; free space there, then run again";
constexpr std::string_view kCheckDisk =
    "; check the disk, then run again; where the disk has lost a part of the file for ever, `xffl "
    "journal repair` makes the journal again from its mirror";
constexpr std::string_view kOtherProgram =
    "; another program holds the database: close it, then run again";
constexpr std::string_view kPermissions = "; check the permissions of the folder and of the file";
constexpr Failure kFailures[] = {{SQLITE_CORRUPT, ErrorKind::kCorrupt},
                                 {SQLITE_NOTADB, ErrorKind::kCorrupt},
                                 {SQLITE_CONSTRAINT, ErrorKind::kCorrupt},
                                 {SQLITE_MISMATCH, ErrorKind::kCorrupt},
                                 {SQLITE_FULL, ErrorKind::kIo, kFreeSpace},
                                 {SQLITE_IOERR, ErrorKind::kIo, kCheckDisk},
                                 {SQLITE_CANTOPEN, ErrorKind::kIo, kPermissions},
                                 {SQLITE_READONLY, ErrorKind::kIo, kPermissions},
                                 {SQLITE_PERM, ErrorKind::kIo, kPermissions},
                                 {SQLITE_BUSY, ErrorKind::kIo, kOtherProgram},
                                 {SQLITE_LOCKED, ErrorKind::kIo, kOtherProgram},
                                 {SQLITE_NOLFS, ErrorKind::kIo}};

Failure failure_of(int code) {
  for (const Failure& failure : kFailures)
    if (failure.code == (code & 0xff)) return failure;
  return {code, ErrorKind::kInternal};
}

class Statement {
 public:
  Statement(Database& database, std::string_view sql) : database_(database) {
    if (sqlite3_prepare_v2(database.handle(), sql.data(), static_cast<int>(sql.size()), &statement_,
                           nullptr) != SQLITE_OK)
      database.fail("read");
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(int index, int64_t value) {
    if (sqlite3_bind_int64(statement_, index, value) != SQLITE_OK) database_.fail("write to");
  }
  // SQLITE_STATIC makes no copy: the caller's text outlives step().
  void bind(int index, std::string_view value) {
    if (sqlite3_bind_text64(statement_, index, value.data(), value.size(), SQLITE_STATIC,
                            SQLITE_UTF8) != SQLITE_OK)
      database_.fail("write to");
  }
  // True while the query has a further row.
  bool step() {
    switch (sqlite3_step(statement_)) {
      case SQLITE_ROW:
        return true;
      case SQLITE_DONE:
        return false;
      default:
        database_.fail(sqlite3_stmt_readonly(statement_) != 0 ? "read" : "write to");
    }
  }

  int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string text(int column) const {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return {text,
            text == nullptr ? 0 : static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }

 private:
  Database& database_;
  sqlite3_stmt* statement_ = nullptr;
};

StoredEvent event_in(const Statement& row) {
  return {row.integer(0), row.text(1),
          row.text(2),    static_cast<int>(row.integer(3)),
          row.text(4),    static_cast<int>(row.integer(5)),
          row.text(6)};
}

[[noreturn]] void corrupt(const Database& database, const std::string& what) {
  throw Error(ErrorKind::kCorrupt, "the journal " + database.path().string() +
                                       " is damaged: " + what + std::string(kRepairAdvice));
}

}  // namespace

std::string genesis_chain() { return sha256_hex("xffl journal"); }

std::string next_chain(std::string_view previous, const StoredEvent& event) {
  Sha256 hash;
  const auto add = [&hash](std::string_view field) {
    hash.update(std::to_string(field.size()) + ":");
    hash.update(field);
  };
  add(previous);
  add(std::to_string(event.seq));
  add(event.time_utc);
  add(event.kind);
  add(std::to_string(event.round));
  add(event.facility);
  add(std::to_string(event.attempt));
  add(event.payload);
  return hash.hex();
}

Database::Database(const std::filesystem::path& path) : path_(path) {
  if (!std::filesystem::exists(path))
    throw Error(ErrorKind::kNotFound, "there is no journal at " + path.string());
  open(path.string(), SQLITE_OPEN_READWRITE);
}

Database::Database(const std::filesystem::path& path, Immutable) : path_(path) {
  std::string name = "file:";
  for (const char c : path.string()) {
    char escaped[4];
    std::snprintf(escaped, sizeof escaped, "%%%02X", static_cast<unsigned char>(c));
    name += std::string_view("?#%").find(c) == std::string_view::npos ? std::string(1, c) : escaped;
  }
  open(name + "?immutable=1", SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
}

void Database::open(const std::string& name, int flags) {
  const int code = sqlite3_open_v2(name.c_str(), &handle_, flags | SQLITE_OPEN_FULLMUTEX, nullptr);
  if (code != SQLITE_OK) {
    const std::string why = handle_ != nullptr ? sqlite3_errmsg(handle_) : "out of memory";
    sqlite3_close(handle_);
    const std::string message = "cannot open the journal " + path_.string() + ": " + why;
    if (failure_of(code).code == SQLITE_IOERR)
      throw DiskError(ErrorKind::kIo, message + std::string(kCheckDisk));
    throw Error(ErrorKind::kIo, message);
  }
  sqlite3_extended_result_codes(handle_, 1);
  sqlite3_busy_timeout(handle_, kBusyTimeoutMs);
  // A damaged schema must not run its own code, and SQLite must report damage.
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
}

void Database::wait_for_locks() { sqlite3_busy_handler(handle_, wait_for_lock, this); }

Database::~Database() { sqlite3_close_v2(handle_); }

void Database::fail(std::string_view action) const {
  const int code = sqlite3_extended_errcode(handle_);
  const Failure failure = failure_of(code);
  const int primary = code & 0xff;
  const int error_number = sqlite3_system_errno(handle_);
  const bool is_of_system = primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN;
  const std::string detail =
      std::string(sqlite3_errmsg(handle_)) + " (SQLite error " + std::to_string(code) + ")" +
      (is_of_system && error_number != 0 ? ": " + std::generic_category().message(error_number)
                                         : "");
  if (failure.kind == ErrorKind::kCorrupt)
    throw Error(failure.kind, "the journal " + path_.string() + " is damaged: " + detail +
                                  std::string(kRepairAdvice));
  const std::string message = "cannot " + std::string(action) + " the journal " + path_.string() +
                              ": " + detail + std::string(failure.advice);
  if (failure.code == SQLITE_IOERR) throw DiskError(failure.kind, message);
  throw Error(failure.kind, message);
}

void Database::exec(const char* sql) {
  if (sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail("use");
}

int64_t Database::integer(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Database::text(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.text(0) : "";
}

bool Database::in_transaction() const { return sqlite3_get_autocommit(handle_) == 0; }

bool Database::disk_failed() const { return (sqlite3_errcode(handle_) & 0xff) == SQLITE_IOERR; }

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
  if (check_schema(database)) return database.exec(kRunIndex);
  database.exec("BEGIN IMMEDIATE");
  database.exec(kSchema);
  database.exec(kRunIndex);
  database.exec(("PRAGMA application_id = " + std::to_string(kApplicationId)).c_str());
  database.exec(("PRAGMA user_version = " + std::to_string(kSchemaVersion)).c_str());
  database.exec("COMMIT");
}

// The table is not part of the schema's version: an earlier release ignores it.
int64_t begin_epoch(Database& database, int64_t least) {
  database.exec("BEGIN IMMEDIATE");
  database.exec(
      "CREATE TABLE IF NOT EXISTS writer (epoch INTEGER NOT NULL CHECK (epoch > 0)) STRICT");
  const std::string first = "INSERT INTO writer (epoch) SELECT " + std::to_string(least) +
                            " WHERE NOT EXISTS (SELECT 1 FROM writer)";
  database.exec(first.c_str());
  database.exec("UPDATE writer SET epoch = epoch + 1");
  const int64_t epoch = read_epoch(database);
  database.exec("COMMIT");
  return epoch;
}

int64_t read_epoch(Database& database) {
  return database.integer("SELECT coalesce(max(epoch), 0) FROM writer");
}

void check_structure(Database& database) {
  const std::string found = database.text("PRAGMA quick_check(1)");
  if (found != "ok") corrupt(database, "SQLite's check says: " + log::printable(found, 300));
}

JournalEnd for_each_verified(Database& database, const RowVisitor& visit) {
  JournalEnd end{0, genesis_chain()};
  try {
    for_each(database, {}, [&](const StoredEvent& event, const std::string& chain) {
      const std::string expected = std::to_string(end.events + 1);
      if (event.seq != end.events + 1)
        corrupt(database, "event " + expected + " is missing (the next one is " +
                              std::to_string(event.seq) + ")");
      end.chain = next_chain(end.chain, event);
      if (end.chain != chain)
        corrupt(database, "event " + expected +
                              " was changed: its chain hash does not fit its content and the "
                              "events before it");
      visit(event, chain);
      ++end.events;
    });
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kCorrupt)
      error.add_context("at event " + std::to_string(end.events + 1));
    throw;
  }
  return end;
}

std::vector<StoredEvent> newest_events(Database& database,
                                       const std::function<bool(const StoredEvent&)>& continues) {
  std::vector<StoredEvent> events;  // newest first
  // Reads the rows with seq < `below`, until `more` returns false.
  const auto read = [&](const std::string& where, int64_t below, const auto& more) {
    Statement rows(
        database,
        "SELECT seq, time, kind, round, facility, attempt, payload, chain, (SELECT chain "
        "FROM events AS previous WHERE previous.seq = events.seq - 1) FROM events " +
            where + " ORDER BY seq DESC");
    rows.bind(1, below);
    while (rows.step()) {
      events.push_back(event_in(rows));
      const std::string previous = events.back().seq == 1 ? genesis_chain() : rows.text(8);
      if (next_chain(previous, events.back()) != rows.text(7))
        corrupt(database, "event " + std::to_string(events.back().seq) +
                              " was changed, or the event before it: its chain hash does not fit");
      if (!more(events.back())) return;
    }
  };
  read("WHERE seq < ?", std::numeric_limits<int64_t>::max(), continues);
  if (!events.empty() && events.back().seq > 1) {
    const bool has_index =
        database.integer("SELECT count(*) FROM sqlite_schema WHERE name = 'events_of_run'") > 0;
    read(std::string(has_index ? "INDEXED BY events_of_run" : "") + " WHERE round = 0 AND seq < ?",
         events.back().seq, [](const StoredEvent&) { return true; });
  }
  std::reverse(events.begin(), events.end());
  return events;
}

void for_each(Database& database, const Selection& selection, const RowVisitor& visit) {
  // A search in a damaged page may skip events in silence; the scan of all pages does not.
  const Selection whole;
  const bool all = selection.first_seq == whole.first_seq && selection.last_seq == whole.last_seq &&
                   !selection.round && selection.facility.empty();
  std::string sql = "SELECT seq, time, kind, round, facility, attempt, payload, chain FROM events";
  if (!all) sql += " WHERE seq BETWEEN ? AND ?";
  if (selection.round) sql += " AND round IN (0, ?3)";
  if (!selection.facility.empty()) sql += " AND facility IN ('', ?4)";
  Statement rows(database, sql + " ORDER BY seq");
  if (!all) rows.bind(1, selection.first_seq);
  if (!all) rows.bind(2, selection.last_seq);
  if (selection.round) rows.bind(3, int64_t{*selection.round});
  if (!selection.facility.empty()) rows.bind(4, selection.facility);
  while (rows.step()) visit(event_in(rows), rows.text(7));
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
