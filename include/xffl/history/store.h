// The run's memory: durable events, in order, each bound to the previous event by a hash.
//
// SQLite (synchronous=FULL; WAL, or a rollback journal on a network file system) holds the rows
// {seq, time, kind, round, facility, attempt, payload, chain}, where chain = SHA-256(previous
// chain, row). append() returns after the row is on disk. The store never changes or removes a row.
// There is one writer: open() takes an exclusive lock beside the database, and the lock file names
// the holder (host, pid, start). A lock may fail to keep a second writer out: a user removed its
// file because the holder is frozen, or another host does not see it. Therefore open() also raises
// the writer's epoch in the database, and from then on the store of an earlier epoch appends
// nothing. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
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

// The events of a query, in their order.
struct Selection {
  int64_t first_seq = 1;
  int64_t last_seq = std::numeric_limits<int64_t>::max();
  /// Only this round and the run as a whole (round 0).
  std::optional<int> round = std::nullopt;
  /// Only this facility and the events without a facility; empty: all.
  std::string facility = {};
};

class Store {
 public:
  using Visitor = std::function<void(const StoredEvent&)>;
  /// Creates or opens `path` for writing, and calls `each` with every event. The store keeps no
  /// events in memory. Throws kBusy (the holder), kCorrupt (chain or database damaged: first bad
  /// seq), kUnsupported (newer schema), kIo, and any error of `each`.
  static std::unique_ptr<Store> open(const std::filesystem::path& path, const Visitor& each = {});
  virtual ~Store() = default;

  /// Checks an event, with its seq and time, before the write; throws to reject the event.
  using Check = std::function<void(const StoredEvent&)>;
  /// Appends the event durably and assigns its seq and time_utc. Waits, with a warning, as long as
  /// another program keeps the database locked. Throws kIo (disk full, ...), kBusy when another
  /// writer has taken the journal over, and any error of `check`. After an error the journal lacks
  /// the event.
  virtual StoredEvent append(StoredEvent event, const Check& check = {}) = 0;
  /// Reads the events from the disk.
  virtual std::vector<StoredEvent> events(const Selection& selection = {}) const = 0;

  /// The number of this writer, higher than the number of every earlier writer of this journal.
  virtual int64_t epoch() const = 0;
  /// Throws kBusy when another writer has taken the journal over or the journal is gone from its
  /// path (a user has moved the run), kIo. Reads the database; an effect outside the journal calls
  /// it right before. After it returned, another writer may take over before the effect: see
  /// xffl/history/work_files.h.
  virtual void check_writer() = 0;
  /// check_writer() as a question. Throws kIo.
  virtual bool is_writer() = 0;
};

/// Reads without the lock, while a coordinator may be writing. Throws as Store::open(), except
/// kBusy.
std::vector<StoredEvent> read_events(const std::filesystem::path& path);

/// Reads the newest events, newest first, until `continues` returns false for one, which still
/// counts; and all earlier events of the run as a whole (round 0). Returns them in their order.
/// Each event must fit the chain of the event before it: the whole chain is checked when the
/// reading reaches the first event, and by Store::open(). The work does not grow with the other
/// events, once this release has opened the journal for writing. Throws as read_events().
std::vector<StoredEvent> read_newest_events(
    const std::filesystem::path& path, const std::function<bool(const StoredEvent&)>& continues);

/// Calls `each` with the selected events, in their order, without the lock and without a check of
/// the chain: for a reader that follows a run whose coordinator has checked the journal. None for a
/// journal that does not exist yet. Throws kCorrupt for a damaged database, kIo, and any error of
/// `each`.
void visit_events(const std::filesystem::path& path, const Selection& selection,
                  const Store::Visitor& each);

struct Repaired {
  int64_t events = 0;               // in the repaired journal
  int64_t lost_events = 0;          // at least so many later events are lost
  std::filesystem::path damaged{};  // the damaged database's new path; empty: it had no damage
  std::filesystem::path damaged_mirror{};  // the mirror's new path, after a loss
};
/// The choice of the user for events that cannot be brought back: repair() throws kCorrupt, or
/// leaves the events out.
enum class Losses { kRefused, kAccepted };
/// Rebuilds a damaged or lost journal. append() also writes each event to the mirror, journal.jsonl
/// beside journal.db, one JSON object per line; repair() takes each event from the database or from
/// the mirror, as long as the event fits the chain. After a crash the mirror may lack the last
/// event; a continued run looks up the effect of the missing event. Rows or lines of later events
/// are a loss, which has to be accepted; both damaged files are then kept under other names. Throws
/// kBusy while a coordinator holds the journal, kNotFound when the first event is lost, kIo.
Repaired repair(const std::filesystem::path& path, Losses losses = Losses::kRefused);

/// The process that holds the writer's lock: "pid 123 on host since 2026-..."; empty: none.
std::string lock_holder(const std::filesystem::path& path);
/// The name of this machine, as in lock_holder().
std::string this_host();

/// The kind of network file system that holds `path` ("nfs4", "lustre"), from this process's mount
/// table; empty for a local or unknown file system. For a path that does not exist yet, the nearest
/// existing folder counts. SQLite's locks and memory maps may hold for one machine only on a
/// network file system, so that two coordinators could write one journal. Never throws: an
/// unreadable mount table counts as unknown.
///
/// Source: proc(5), /proc/pid/mounts; getmntent(3).
std::string network_file_system(const std::filesystem::path& path,
                                const std::filesystem::path& mounts = "/proc/self/mounts");

}  // namespace xffl::history
