// The parts of the store: the writer's lock, the database and its mirror.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/store.h"

struct sqlite3;

namespace xffl::history {

// The writer's lock (lock.cc): flock() on "<journal>.lock", a file that names the lock's holder and
// that xffl never removes.
//
// The holder writes one line of JSON {host, pid, start_ticks, since} to the file; a clean end
// empties the file. The lock is the flock, not the text: on a local file system the flock ends with
// its process, and xffl ignores stale text. On a network file system a flock may be valid on one
// host only. There, text of another host counts as a holder until a user removes the file.
class WriterLock {
 public:
  /// Throws kBusy with the holder and a remedy, kIo.
  explicit WriterLock(const std::filesystem::path& journal);
  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

// --- The SQLite database (database.cc): the table of events, its guards, and verified reading.

/// The `previous` of the first event.
std::string genesis_chain();
/// Binds a row to all earlier rows: SHA-256 over `previous` and every field of the event, each
/// field preceded by its length.
std::string next_chain(std::string_view previous, const StoredEvent& event);

// An error of the disk (SQLITE_IOERR), of the kind kIo: a part of the file may stay unreadable.
class DiskError final : public Error {
 public:
  using Error::Error;
};

// Errors name the file.
class Database {
 public:
  /// Opens an existing file for reading and writing; for reading only, when the permissions forbid
  /// writing. Throws kNotFound, kCorrupt, kIo, DiskError.
  explicit Database(const std::filesystem::path& path);
  /// Opens a file on a file system that permits no writes, not even SQLite's locks: no writer
  /// exists.
  struct Immutable {};
  Database(const std::filesystem::path& path, Immutable);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  /// From now on a call waits for a locked database, and warns after 10 s. Before, it fails after
  /// 10 s.
  void wait_for_locks();

  void exec(const char* sql);
  int64_t integer(const char* sql);   // the first column of the first row
  std::string text(const char* sql);  // likewise
  bool in_transaction() const;
  /// Whether the last call failed with a disk error that leaves the file's state unknown (a full
  /// disk does not).
  bool disk_failed() const;

  sqlite3* handle() const { return handle_; }
  const std::filesystem::path& path() const { return path_; }
  /// Throws kCorrupt for a damaged database, DiskError, kIo for another error of the operating
  /// system, else kInternal.
  [[noreturn]] void fail(std::string_view action) const;

 private:
  void open(const std::string& name, int flags);

  std::filesystem::path path_;
  sqlite3* handle_ = nullptr;
};

/// Makes an empty database a journal; checks that any other database is a journal. Throws
/// kUnsupported (newer schema), kCorrupt (another program's database).
void create_or_check_schema(Database& database);
/// Checks the schema for a reader; false for a database that is still empty.
bool check_schema(Database& database);
/// SQLite's own check of the file's structure. Throws kCorrupt.
void check_structure(Database& database);

/// Raises the epoch and returns it: the number of the writer that opens the database.
/// The new epoch is above `least`.
int64_t begin_epoch(Database& database, int64_t least = 1);
/// The epoch of the newest writer.
int64_t read_epoch(Database& database);

// The end of a verified journal.
struct JournalEnd {
  int64_t events = 0;
  std::string chain;  // of the last event
};
/// The event, and the chain that its row claims.
using RowVisitor = std::function<void(const StoredEvent&, const std::string& chain)>;
/// Reads all events, one at a time, and verifies the chain. Throws kCorrupt with the first bad seq.
JournalEnd for_each_verified(Database& database, const RowVisitor& visit);
/// Reads as read_newest_events().
std::vector<StoredEvent> newest_events(Database& database,
                                       const std::function<bool(const StoredEvent&)>& continues);
/// Reads the selected events without a check.
void for_each(Database& database, const Selection& selection, const RowVisitor& visit);
void insert(Database& database, const StoredEvent& event, const std::string& chain);

/// Calls `read` with a journal in one consistent state, without the lock, while a coordinator may
/// be writing. No events for a database that is still empty. Throws kNotFound, kCorrupt,
/// kUnsupported, kIo, and any error of `read`.
using Reading = std::function<std::vector<StoredEvent>(Database&)>;
std::vector<StoredEvent> read_snapshot(const std::filesystem::path& path, const Reading& read);

/// The line of an event in the mirror, with its newline. The line holds the payload as a string, so
/// that a reader gets the same bytes.
std::string format_mirror_line(const StoredEvent& event, const std::string& chain);
/// The event of a line, and the chain that the line claims. Throws kCorrupt.
std::pair<StoredEvent, std::string> parse_mirror_line(std::string_view text);

// The mirror (mirror.cc): a copy of every event in journal.jsonl beside journal.db, one JSON object
// per line. repair() reads the mirror when the database is damaged. Each event reaches the database
// first: after a crash the mirror may lack the last event, which the next opening adds.
class Mirror {
 public:
  explicit Mirror(const std::filesystem::path& journal);

  /// Compares the mirror's next line with the database's next event, at the opening.
  void compare(const StoredEvent& event, const std::string& chain);
  /// Brings the mirror up to date after the last comparison, in a new file: a stale coordinator may
  /// append to the earlier one. Throws kCorrupt, and leaves the mirror as it is, when the mirror
  /// has more whole lines than the database has events: the database has lost events.
  void open(Database& database);

  /// Appends the database's last event durably. The database has the event already, so append()
  /// only logs a failure, and the next append() adds the missing events.
  void append(Database& database, const StoredEvent& event, const std::string& chain);

 private:
  bool is_at_its_path() const;
  void add_missing(Database& database);
  void rewrite(Database& database);
  void renew();
  void keep_aside();
  void write(int fd, const std::string& lines, const std::filesystem::path& path);

  const std::filesystem::path journal_, path_;
  std::ifstream compared_;
  std::string chain_;     // of the last equal line
  bool differs_ = false;  // a line differs from its event
  int64_t rows_ = 0;      // events of the database that were compared
  int64_t events_ = 0;    // that the mirror has
  uint64_t bytes_ = 0;    // of these events' lines
  UniqueFd fd_;           // empty after a failure
};

}  // namespace xffl::history
