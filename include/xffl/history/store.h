// The run's memory: durable events, in order, each bound to the one before by a hash.
//
// SQLite (synchronous=FULL; WAL, or a rollback journal on a network file system) holds the rows
// {seq, time, kind, round, facility, attempt, payload, chain}, where chain = SHA-256(previous
// chain, row). append() returns after the row is on disk. Rows are never changed or removed. One
// writer: open() takes an exclusive lock beside the database that a second coordinator cannot get;
// the lock file says who holds it (host, pid, start). Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::history {

inline constexpr int kSchemaVersion = 1;

struct StoredEvent {
  int64_t seq = 0;       // 1, 2, 3, ...; set by append
  std::string time_utc;  // set by append
  std::string kind;      // "round_planned"; [a-z_]+
  int round = 0;         // 0: the run as a whole
  std::string facility;  // empty: the round as a whole
  int attempt = 0;
  std::string payload;  // one JSON object
};

class Store {
 public:
  /// Creates or opens `path` for writing. Throws kBusy (who holds it and since when), kCorrupt
  /// (chain or database damaged: first bad seq), kUnsupported (newer schema), kIo.
  static std::unique_ptr<Store> open(const std::filesystem::path& path);
  virtual ~Store() = default;

  /// Durable on return. `event.seq` and `time_utc` are assigned. Throws kIo (disk full, ...), kBusy
  /// when another writer has taken the journal over: nothing was recorded.
  virtual StoredEvent append(StoredEvent event) = 0;
  virtual std::vector<StoredEvent> events() const = 0;
};

/// Reads without the lock, while a coordinator may be writing: for status and logs. The same
/// errors, except kBusy.
std::vector<StoredEvent> read_events(const std::filesystem::path& path);

struct Repaired {
  int64_t events = 0;             // that the journal has now
  std::filesystem::path damaged;  // where the damaged database is now; empty: there was no damage
};
/// Makes a damaged or lost journal again from its mirror (journal.jsonl beside journal.db, a JSON
/// object a line, which append() writes too). At most the last event is missing then: what a run
/// looks up when it continues. Throws kBusy while a coordinator has it, kNotFound when the mirror
/// holds nothing, kIo.
Repaired repair(const std::filesystem::path& path);

/// Who holds the writer's lock: "pid 123 on host since 2026-..."; empty when nobody does.
std::string lock_holder(const std::filesystem::path& path);

}  // namespace xffl::history
