// How it works: one SQLite connection and one mutex. Every event is one transaction of one row.
// SQLite copies the write-ahead log into the database after each event, because later checks cover
// only the database and SQLite silently drops a damaged tail of the log.
#include "xffl/history/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <regex>

#include "store_parts.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/names.h"

namespace xffl::history {

namespace {

constexpr uint64_t kMaxPayloadBytes = 8u << 20;

// SQLite gives its own files (-wal, -shm) the mode of the database.
void create_private(const std::filesystem::path& path) {
  const UniqueFd fd = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (::fchmod(fd.get(), 0600) != 0) throw system_error("chmod " + path.string(), errno);
  fsync_dir(path.parent_path());
}

// An invalid event is a bug of a caller, and must not reach the disk.
void check_event(const StoredEvent& event) {
  const auto require = [&](bool good, const char* what) {
    if (!good)
      throw Error(ErrorKind::kInternal,
                  "journal event '" + log::printable(event.kind, 64) + "': " + what);
  };
  require(!event.kind.empty() && event.kind.size() <= 64 &&
              event.kind.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos,
          "a kind is 1 to 64 of [a-z_]");
  require(event.round >= 0 && event.attempt >= 0, "round and attempt are not negative");
  if (!event.facility.empty()) FacilityName{event.facility};
  const Json payload = parse_json(event.payload, "payload of journal event " + event.kind,
                                  {.max_bytes = kMaxPayloadBytes});
  require(payload.is_object(), "the payload is one JSON object");
}

// --- Failpoints --------------------------------------------------------------------------------
//
// Tests kill the coordinator with XFFL_FAILPOINT=journal:before:N or journal:after:N, around its
// N-th append, and stop it after each append of a kind with journal:stop:KIND.

enum class FailpointSide { kBefore, kAfter };

struct Failpoint {
  FailpointSide side = FailpointSide::kBefore;
  long append_index = 0;    // 0: none
  std::string stop_kind{};  // empty: none
};

// Rejects unknown text: a test with a typo must not pass.
Failpoint parse(const char* text) {
  if (text == nullptr || *text == '\0') return {};
  static const std::regex kPattern("journal:(before|after):([1-9][0-9]{0,8})|journal:stop:(.+)");
  std::cmatch match;
  if (!std::regex_match(text, match, kPattern))
    throw Error(ErrorKind::kUsage,
                "XFFL_FAILPOINT is '" + std::string(text) +
                    "'; expected journal:before:N or journal:after:N, N >= 1, or "
                    "journal:stop:KIND");
  if (match[3].matched) return {.stop_kind = match[3]};
  return {.side = match[1] == "after" ? FailpointSide::kAfter : FailpointSide::kBefore,
          .append_index = std::stol(match[2])};
}

// Kills this process (SIGKILL) right before or right after its N-th durable append, if the
// environment asks for the kill. Stops the process (SIGSTOP) right after every append of the
// failpoint's kind.
void failpoint(FailpointSide side, long append_index, std::string_view kind) {
  static const Failpoint point = parse(std::getenv("XFFL_FAILPOINT"));
  if (point.append_index == append_index && point.side == side) ::raise(SIGKILL);
  if (side == FailpointSide::kAfter && !kind.empty() && kind == point.stop_kind) ::raise(SIGSTOP);
}

// Counts the appends of this process from 1.
long next_append_index() {
  static std::atomic<long> count{0};
  return ++count;
}

class SqliteJournal final : public Store {
 public:
  explicit SqliteJournal(const std::filesystem::path& path) : lock_(path) {
    create_private(path);
    database_ = std::make_unique<Database>(path);
    // The write-ahead log needs memory that all readers share.
    const bool shared = !network_file_system(path).empty();
    database_->exec(shared ? "PRAGMA journal_mode = DELETE" : "PRAGMA journal_mode = WAL");
    database_->exec("PRAGMA synchronous = FULL");
    database_->exec("PRAGMA wal_autocheckpoint = 1");
    create_or_check_schema(*database_);
    check_structure(*database_);
    verified_ = read_verified(*database_);
    mirror_.emplace(path, verified_);
  }

  StoredEvent append(StoredEvent event, const Check& check) override {
    if (event.payload.empty()) event.payload = "{}";
    check_event(event);
    const std::lock_guard lock(mutex_);
    if (broken_)
      throw Error(ErrorKind::kIo, "the journal " + database_->path().string() +
                                      " failed before: nothing more is recorded; run again");
    event.seq = static_cast<int64_t>(verified_.events.size()) + 1;
    event.time_utc = format_utc(SystemClock().utc());
    if (check) check(event);
    std::string chain = next_chain(verified_.chain, event);
    verified_.events.reserve(verified_.events.size() + 1);
    commit(event, chain);
    mirror_->append(verified_, event, chain);
    verified_.chain = std::move(chain);
    verified_.events.push_back(event);
    return event;
  }

  std::vector<StoredEvent> events() const override {
    const std::lock_guard lock(mutex_);
    return verified_.events;
  }

 private:
  void commit(const StoredEvent& event, const std::string& chain) {
    const long index = next_append_index();
    try {
      database_->exec("BEGIN IMMEDIATE");
      insert(*database_, event, chain);
      failpoint(FailpointSide::kBefore, index, event.kind);
      database_->exec("COMMIT");
    } catch (Error& error) {
      // After a failed fsync the content of the disk is unknown until the file is read again.
      broken_ = database_->disk_failed();
      roll_back();
      if (error.kind() == ErrorKind::kCorrupt) require_not_taken_over();
      error.add_context("recording the event '" + event.kind + "'");
      throw;
    }
    failpoint(FailpointSide::kAfter, index, event.kind);
  }

  // Another host may not see the lock, or a user may have removed it. The order of events still
  // shows another writer.
  void require_not_taken_over() {
    const int64_t ours = static_cast<int64_t>(verified_.events.size());
    if (database_->integer("SELECT coalesce(max(seq), 0) FROM events") <= ours) return;
    broken_ = true;
    throw Error(ErrorKind::kBusy, "another coordinator has taken the journal " +
                                      database_->path().string() +
                                      " over: this one stops; see `xffl status`");
  }

  void roll_back() {
    try {
      if (database_->in_transaction()) database_->exec("ROLLBACK");
    } catch (const Error&) {
      // The caller reports the first error; the store does not use the connection again.
    }
  }

  mutable std::mutex mutex_;
  WriterLock lock_;  // released after the database is closed
  std::unique_ptr<Database> database_;
  VerifiedEvents verified_;
  std::optional<Mirror> mirror_;
  bool broken_ = false;
};

std::vector<StoredEvent> read_all(Database&& database) {
  // One snapshot: a coordinator may be creating the tables at this very moment.
  database.exec("BEGIN");
  if (!check_schema(database)) return {};
  return read_verified(database).events;
}

// On a read-only mount, such as a snapshot, no coordinator can write.
bool is_read_only(const std::filesystem::path& folder) {
  struct statvfs info {};
  return ::statvfs(folder.c_str(), &info) == 0 && (info.f_flag & ST_RDONLY) != 0;
}

}  // namespace

std::unique_ptr<Store> Store::open(const std::filesystem::path& path) {
  return std::make_unique<SqliteJournal>(path);
}

std::vector<StoredEvent> read_events(const std::filesystem::path& path) {
  if (std::filesystem::exists(path) && is_read_only(path.parent_path()))
    return read_all(Database(path, Database::Immutable{}));
  return read_all(Database(path));
}

}  // namespace xffl::history
