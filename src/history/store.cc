// How it works: one SQLite connection and one mutex. Every event is one transaction of one row.
// SQLite copies the write-ahead log into the database after each event, because later checks cover
// only the database and SQLite silently drops a damaged tail of the log.
#include "xffl/history/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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
// N-th append, and stop it after each append of a kind with journal:stop:KIND, after its N-th
// append with journal:stop:N, or after its N-th check_writer() with writer:stop:N.

enum class FailpointSide { kBefore, kAfter };

struct Failpoint {
  FailpointSide side = FailpointSide::kBefore;
  long append_index = 0;    // 0: none
  std::string stop_kind{};  // empty: none
  long stop_append = 0;     // 0: none
  long stop_check = 0;      // 0: none
};

// Rejects unknown text: a test with a typo must not pass.
Failpoint parse(const char* text) {
  if (text == nullptr || *text == '\0') return {};
  static const std::regex kPattern(
      "journal:(before|after):([1-9][0-9]{0,8})|(journal|writer):stop:([1-9][0-9]{0,8})|"
      "journal:stop:([a-z_]+)");
  std::cmatch match;
  if (!std::regex_match(text, match, kPattern))
    throw Error(
        ErrorKind::kUsage,
        "XFFL_FAILPOINT is '" + std::string(text) +
            "'; expected journal:before:N, journal:after:N, journal:stop:N or writer:stop:N, "
            "N >= 1, or journal:stop:KIND");
  if (match[5].matched) return {.stop_kind = match[5]};
  if (match[4].matched && match[3] == "writer") return {.stop_check = std::stol(match[4])};
  if (match[4].matched) return {.stop_append = std::stol(match[4])};
  return {.side = match[1] == "after" ? FailpointSide::kAfter : FailpointSide::kBefore,
          .append_index = std::stol(match[2])};
}

const Failpoint& failpoint_of_environment() {
  static const Failpoint point = parse(std::getenv("XFFL_FAILPOINT"));
  return point;
}

// All threads stop, as a machine that is suspended.
void stop_process() { ::kill(::getpid(), SIGSTOP); }

// Kills this process (SIGKILL) right before or right after its N-th durable append, or stops it
// (SIGSTOP) right after an append, if the environment asks for it.
void failpoint(FailpointSide side, long append_index, std::string_view kind) {
  const Failpoint& point = failpoint_of_environment();
  if (point.append_index == append_index && point.side == side) ::raise(SIGKILL);
  if (side != FailpointSide::kAfter) return;
  if (kind == point.stop_kind || point.stop_append == append_index) stop_process();
}

// Stops this process right after its N-th successful check_writer().
void failpoint_after_check() {
  static std::atomic<long> count{0};
  if (failpoint_of_environment().stop_check == ++count) stop_process();
}

// Counts the appends of this process from 1.
long next_append_index() {
  static std::atomic<long> count{0};
  return ++count;
}

class SqliteJournal final : public Store {
 public:
  SqliteJournal(const std::filesystem::path& path, const Visitor& each) : lock_(path) {
    create_private(path);
    database_ = std::make_unique<Database>(path);
    // The write-ahead log needs memory that all readers share.
    const bool shared = !network_file_system(path).empty();
    database_->exec(shared ? "PRAGMA journal_mode = DELETE" : "PRAGMA journal_mode = WAL");
    database_->exec("PRAGMA synchronous = FULL");
    database_->exec("PRAGMA wal_autocheckpoint = 1");
    create_or_check_schema(*database_);
    check_structure(*database_);
    epoch_ = begin_epoch(*database_);  // before the reading: no earlier writer appends any more
    inode_ = inode_of(path);
    mirror_.emplace(path);
    end_ = for_each_verified(*database_, [&](const StoredEvent& event, const std::string& chain) {
      mirror_->compare(event, chain);
      if (each) each(event);
    });
    require_writer();  // a coordinator that was frozen during the reading leaves the mirror alone
    mirror_->open(*database_);
    database_->wait_for_locks();  // a slow or frozen reader ends no run
  }

  StoredEvent append(StoredEvent event, const Check& check) override {
    if (event.payload.empty()) event.payload = "{}";
    check_event(event);
    const std::lock_guard lock(mutex_);
    if (taken_over_) throw_taken_over();
    if (!failure_.empty())
      throw Error(ErrorKind::kIo, "the journal " + database_->path().string() +
                                      " failed before: nothing more is recorded; check the disk, "
                                      "then run again. The failure: " +
                                      failure_);
    event.seq = end_.events + 1;
    event.time_utc = format_utc(SystemClock().utc());
    if (check) check(event);
    std::string chain = next_chain(end_.chain, event);
    commit(event, chain);
    mirror_->append(*database_, event, chain);
    end_ = {event.seq, std::move(chain)};
    return event;
  }

  std::vector<StoredEvent> events(const Selection& selection) const override {
    const std::lock_guard lock(mutex_);
    std::vector<StoredEvent> events;
    for_each(*database_, selection,
             [&](const StoredEvent& event, const std::string&) { events.push_back(event); });
    return events;
  }

  int64_t epoch() const override { return epoch_; }

  void check_writer() override {
    {
      const std::lock_guard lock(mutex_);
      require_writer();
    }
    failpoint_after_check();
  }

  bool is_writer() override {
    const std::lock_guard lock(mutex_);
    return !taken_over_ && reads_own_epoch();
  }

 private:
  void commit(const StoredEvent& event, const std::string& chain) {
    const long index = next_append_index();
    try {
      database_->exec("BEGIN IMMEDIATE");
      require_writer();
      insert(*database_, event, chain);
      failpoint(FailpointSide::kBefore, index, event.kind);
      database_->exec("COMMIT");
    } catch (Error& error) {
      // After a failed fsync the content of the disk is unknown until the file is read again.
      if (database_->disk_failed()) failure_ = error.what();
      roll_back();
      if (error.kind() == ErrorKind::kBusy) throw;
      error.add_context("recording the event '" + event.kind + "'");
      throw;
    }
    failpoint(FailpointSide::kAfter, index, event.kind);
  }

  // 0: unknown, with the reason in errno.
  static ino_t inode_of(const std::filesystem::path& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
  }

  // `xffl journal repair` replaces the file, and a user may move the run to another disk: a stale
  // store would read its own epoch in a file that no other coordinator opens.
  bool reads_own_epoch() {
    const ino_t there = inode_of(database_->path());
    is_gone_ = there == 0 && (errno == ENOENT || errno == ENOTDIR);
    if (is_gone_ || (there != 0 && there != inode_) || read_epoch(*database_) != epoch_)
      taken_over_ = true;
    return !taken_over_;
  }

  void require_writer() {
    if (taken_over_ || !reads_own_epoch()) throw_taken_over();
  }

  [[noreturn]] void throw_taken_over() const {
    if (is_gone_)
      throw Error(ErrorKind::kBusy,
                  "the journal " + database_->path().string() +
                      " is no longer there: the run was moved or removed while this coordinator "
                      "worked on it. This one stops and changes nothing more; continue a moved run "
                      "with `xffl run --workdir FOLDER`, or move it back and run again");
    const std::string holder = lock_holder(database_->path());
    throw Error(ErrorKind::kBusy, "another coordinator has taken the journal " +
                                      database_->path().string() + " over" +
                                      (holder.empty() ? "" : " (" + holder + ")") +
                                      ": this one stops and changes nothing more; see `xffl "
                                      "status`");
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
  JournalEnd end_;
  std::optional<Mirror> mirror_;
  int64_t epoch_ = 0;
  ino_t inode_ = 0;
  bool taken_over_ = false;  // another writer has a higher epoch, or the journal is gone
  bool is_gone_ = false;     // from its path
  std::string failure_;      // of the disk; nothing is recorded after it
};

// On a read-only mount, such as a snapshot, no coordinator can write.
bool is_read_only(const std::filesystem::path& folder) {
  struct statvfs info {};
  return ::statvfs(folder.c_str(), &info) == 0 && (info.f_flag & ST_RDONLY) != 0;
}

}  // namespace

std::vector<StoredEvent> read_snapshot(const std::filesystem::path& path, const Reading& read) {
  const auto read_all = [&](Database&& database) -> std::vector<StoredEvent> {
    // A coordinator may be creating the tables at this very moment.
    database.exec("BEGIN");
    if (!check_schema(database)) return {};
    return read(database);
  };
  if (std::filesystem::exists(path) && is_read_only(path.parent_path()))
    return read_all(Database(path, Database::Immutable{}));
  return read_all(Database(path));
}

std::unique_ptr<Store> Store::open(const std::filesystem::path& path, const Visitor& each) {
  return std::make_unique<SqliteJournal>(path, each);
}

std::vector<StoredEvent> read_events(const std::filesystem::path& path) {
  return read_snapshot(path, [](Database& database) {
    std::vector<StoredEvent> events;
    for_each_verified(
        database, [&](const StoredEvent& event, const std::string&) { events.push_back(event); });
    return events;
  });
}

void visit_events(const std::filesystem::path& path, const Selection& selection,
                  const Store::Visitor& each) {
  if (!std::filesystem::exists(path)) return;
  read_snapshot(path, [&](Database& database) {
    for_each(database, selection,
             [&](const StoredEvent& event, const std::string&) { each(event); });
    return std::vector<StoredEvent>();
  });
}

std::vector<StoredEvent> read_newest_events(
    const std::filesystem::path& path, const std::function<bool(const StoredEvent&)>& continues) {
  return read_snapshot(path,
                       [&](Database& database) { return newest_events(database, continues); });
}

}  // namespace xffl::history
