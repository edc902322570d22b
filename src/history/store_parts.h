// The parts of the store: the writer's lock, the database and its mirror.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/file.h"
#include "xffl/history/store.h"

struct sqlite3;

namespace xffl::history {

// The writer's lock (lock.cc): flock() on "<journal>.lock", a file that is never removed and names
// its holder.
//
// While the lock is held, the file is one line of JSON {host, pid, start_ticks, since}; a clean end
// empties it. The lock is the flock, not the text: on a local file system it ends with its process,
// and stale text is ignored. On a network file system flock may reach no further than one host, so
// text of another host counts as a holder until a user removes the file.
class WriterLock {
 public:
  /// Throws kBusy (the holder, and what to do), kIo.
  explicit WriterLock(const std::filesystem::path& journal);
  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

std::string this_host();

// --- The SQLite database (database.cc): the table of events, its guards, reading with every check.

/// The `previous` of the first event.
std::string genesis_chain();
/// Binds a row to all rows before it: SHA-256 over `previous` and every field of the event, each
/// with its length in front.
std::string next_chain(std::string_view previous, const StoredEvent& event);

// Errors name the file.
class Database {
 public:
  /// Opens an existing file for reading and writing (for reading only when its permissions say so).
  /// Throws kNotFound, kCorrupt, kIo.
  explicit Database(const std::filesystem::path& path);
  /// For a file system that permits no writes, not even SQLite's locks: there is no writer.
  struct Immutable {};
  Database(const std::filesystem::path& path, Immutable);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void exec(const char* sql);
  int64_t integer(const char* sql);   // the first column of the first row
  std::string text(const char* sql);  // likewise
  bool in_transaction() const;
  /// The last call failed with a disk error that leaves the file's state unknown (a full disk does
  /// not).
  bool disk_failed() const;

  sqlite3* handle() const { return handle_; }
  const std::filesystem::path& path() const { return path_; }
  /// kCorrupt for a damaged database, kIo for an error of the operating system, else kInternal.
  [[noreturn]] void fail(std::string_view action) const;

 private:
  void open(const std::string& name, int flags);

  std::filesystem::path path_;
  sqlite3* handle_ = nullptr;
};

/// Makes an empty database a journal; checks that another is one. Throws kUnsupported (newer
/// schema), kCorrupt (another program's database).
void create_or_check_schema(Database& database);
/// The same for readers; false for a database that is still empty.
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

// The mirror (mirror.cc): a copy of every event in journal.jsonl beside journal.db, one JSON object
// a line. repair() reads it when the database is damaged. It follows the database: after a crash it
// may lack the last event, which the next opening adds.
class Mirror {
 public:
  /// Brings the mirror up to date with `truth`. Throws kCorrupt when the mirror has more events
  /// than the database: the database has lost events.
  Mirror(const std::filesystem::path& journal, const VerifiedEvents& truth);

  /// Durable on return. The database has the event already, so a failure is only logged; the next
  /// append writes the whole mirror again.
  void append(const VerifiedEvents& before, const StoredEvent& event, const std::string& chain);

 private:
  void rewrite(const VerifiedEvents& truth);

  const std::filesystem::path path_;
  UniqueFd fd_;  // empty after a failure
};

}  // namespace xffl::history
