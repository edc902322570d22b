// How it works: each event reaches the database first and the mirror second. repair() takes each
// event from a line or a row that fits the chain, writes a complete new database beside the damaged
// database and then renames the new database.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "store_parts.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxLineBytes = 32u << 20;  // a payload's 8 MiB, escaped
// More than any file has: the next event writes the whole mirror.
constexpr uint64_t kUnknownBytes = UINT64_MAX;

fs::path mirror_path(const fs::path& journal) {
  return fs::path(journal).replace_extension(".jsonl");
}

// A whole line of the mirror; none at the end and for a torn last line.
std::optional<std::string> next_line(std::ifstream& file) {
  std::string text;
  if (!std::getline(file, text) || file.eof()) return std::nullopt;
  return text;
}

// An event of a line or a row, and the chain that the line or row claims.
using Claim = std::pair<StoredEvent, std::string>;

// Whether the event follows the event number `seq` with the chain `previous`.
bool follows(const Claim& claim, int64_t seq, const std::string& previous) {
  const auto& [event, claimed] = claim;
  return event.seq == seq + 1 && next_chain(previous, event) == claimed;
}

// The event of a line that follows the event number `seq` with the chain `previous`; none for a
// damaged line.
std::optional<StoredEvent> event_of(const std::string& text, int64_t seq,
                                    const std::string& previous) try {
  const Claim claim = parse_mirror_line(text);
  return follows(claim, seq, previous) ? std::optional(claim.first) : std::nullopt;
} catch (const Error&) {
  return std::nullopt;
}

// The whole lines of a mirror. Damage of its number may give a line the number of another.
struct MirrorLines {
  std::multimap<int64_t, Claim> by_seq;  // without the lines that are no event
  int64_t count = 0;
};

// No lines without a mirror.
MirrorLines read_mirror(const fs::path& mirror) {
  MirrorLines lines;
  std::ifstream file(mirror);
  while (const auto text = next_line(file)) {
    ++lines.count;
    try {
      Claim claim = parse_mirror_line(*text);
      const int64_t seq = claim.first.seq;
      lines.by_seq.emplace(seq, std::move(claim));
    } catch (const Error& error) {
      log::debug("a line of the mirror is damaged",
                 {{"line", lines.count}, {"problem", error.what()}});
    }
  }
  return lines;
}

// The number of events of an undamaged database that is readable, else -1.
int64_t whole_events(const fs::path& path) {
  try {
    Database database(path);
    if (!check_schema(database)) return 0;
    check_structure(database);
    return for_each_verified(database, [](const auto&, const auto&) {}).events;
  } catch (const DiskError& error) {
    log::warning("the journal is not readable in whole", {{"problem", error.what()}});
    return -1;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kNotFound) throw;
    return -1;
  }
}

// The epoch of the damaged database's last writer; 0: not readable.
int64_t readable_epoch(const fs::path& path) {
  try {
    Database database(path);
    return read_epoch(database);
  } catch (const Error& error) {
    log::debug("the epoch of the damaged journal is not readable", {{"problem", error.what()}});
    return 0;
  }
}

// The rows of a database that may be damaged.
class Rows {
 public:
  explicit Rows(const fs::path& path) {
    try {
      database_ = std::make_unique<Database>(path);
    } catch (const DiskError&) {  // no row is readable
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kNotFound) throw;  // else there are no rows
    }
  }

  // None for a row that is absent or not readable.
  std::optional<Claim> find(int64_t seq) const try {
    std::optional<Claim> found;
    if (database_)
      for_each(
          *database_, {.first_seq = seq, .last_seq = seq},
          [&](const StoredEvent& event, const std::string& chain) { found.emplace(event, chain); });
    return found;
  } catch (const Error&) {
    return std::nullopt;
  }

  // The number of rows after `seq` with none of the chains `known`, at least.
  int64_t count_others(int64_t seq, const std::set<std::string>& known) const {
    int64_t count = 0;
    const auto is_other = [&](const std::string& chain) {
      return chain.size() == genesis_chain().size() && !known.contains(chain);
    };
    if (database_) try {
        for_each(*database_, {.first_seq = seq + 1},
                 [&](const StoredEvent& event, const std::string& chain) {
                   // A search among damaged rows may meet earlier ones.
                   if (event.seq > seq && is_other(chain)) ++count;
                 });
      } catch (const Error&) {  // the damage may lie ahead of other rows
        if (count == 0 && is_other(last_chain(seq))) count = 1;
      }
    return count;
  }

 private:
  // Returns the chain of the last row after `seq`; empty when no such row is readable.
  std::string last_chain(int64_t seq) const try {
    const std::string sql = "SELECT chain FROM events WHERE seq > " + std::to_string(seq) +
                            " ORDER BY seq DESC LIMIT 1";
    return database_->text(sql.c_str());
  } catch (const Error&) {
    return "";
  }

  std::unique_ptr<Database> database_;
};

// The events from the first one on, each from a row or a line that fits the chain.
struct Merged {
  std::vector<StoredEvent> events;
  int64_t lost = 0;  // at least so many later rows or lines fit no more
};

// `whole_rows`: the number of events of an undamaged database.
Merged merge(const fs::path& journal, int64_t whole_rows, const MirrorLines& lines) {
  Merged merged;
  std::string chain = genesis_chain();
  std::set<std::string> chains;
  const Rows rows(journal);
  const auto take = [&](const Claim& claim) {
    if (!follows(claim, static_cast<int64_t>(merged.events.size()), chain)) return false;
    chain = claim.second;
    chains.insert(chain);
    merged.events.push_back(claim.first);
    return true;
  };
  const auto take_line = [&](int64_t seq) {
    const auto [begin, end] = lines.by_seq.equal_range(seq);
    return std::any_of(begin, end, [&](const auto& line) { return take(line.second); });
  };
  const auto take_row = [&](int64_t seq) {
    const auto row = rows.find(seq);
    return row && take(*row);
  };
  // A read of a damaged row may last long on a failing disk, and no row of a whole database may be
  // left out.
  int64_t seq = 1;
  while (seq <= whole_rows ? take_row(seq) : take_line(seq) || take_row(seq)) ++seq;
  const auto count = static_cast<int64_t>(merged.events.size());
  merged.lost = std::max(lines.count - count, rows.count_others(count, chains));
  return merged;
}

void write_database(const fs::path& path, const std::vector<StoredEvent>& events, int64_t epoch) {
  fs::remove(path);
  { const UniqueFd fd = open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600); }
  Database database(path);
  database.exec("PRAGMA synchronous = FULL");
  create_or_check_schema(database);
  begin_epoch(database, epoch);
  database.exec("BEGIN IMMEDIATE");
  std::string chain = genesis_chain();
  for (const StoredEvent& event : events) {
    chain = next_chain(chain, event);
    insert(database, event, chain);
  }
  database.exec("COMMIT");
}

}  // namespace

std::string format_mirror_line(const StoredEvent& event, const std::string& chain) {
  const Json line = {{"seq", event.seq},           {"time", event.time_utc},
                     {"kind", event.kind},         {"round", event.round},
                     {"facility", event.facility}, {"attempt", event.attempt},
                     {"payload", event.payload},   {"chain", chain}};
  return line.dump() + "\n";
}

std::pair<StoredEvent, std::string> parse_mirror_line(std::string_view text) {
  const Json json = parse_json(text, "a line of the mirror", {.max_bytes = kMaxLineBytes});
  JsonObject line(json, "a line of the mirror");
  StoredEvent event;
  event.seq = line.integer("seq", 1);
  event.time_utc = line.string("time");
  event.kind = line.string("kind");
  event.round = static_cast<int>(line.integer("round", 0, INT32_MAX));
  event.facility = line.string("facility");
  event.attempt = static_cast<int>(line.integer("attempt", 0, INT32_MAX));
  event.payload = line.string("payload");
  return {event, line.string("chain")};
}

Mirror::Mirror(const fs::path& journal)
    : journal_(journal), path_(mirror_path(journal)), compared_(path_), chain_(genesis_chain()) {}

void Mirror::compare(const StoredEvent& event, const std::string& chain) {
  rows_ = event.seq;
  if (!compared_) return;
  const auto line = next_line(compared_);
  if (!line || differs_) return;  // the mirror ends here, or is written again
  // Another release may write the same event in other bytes.
  const bool same = *line + "\n" == format_mirror_line(event, chain) || [&] {
    const auto known = event_of(*line, event.seq - 1, chain_);
    return known && next_chain(chain_, *known) == chain;
  }();
  differs_ = !same;
  if (differs_) return;
  chain_ = chain;
  events_ = event.seq;
  bytes_ += line->size() + 1;
}

void Mirror::open(Database& database) {
  // Each line had its row first. A damaged line shows the loss as well as a whole one.
  const auto rest = compared_ ? next_line(compared_) : std::nullopt;
  if (rest)
    throw Error(ErrorKind::kCorrupt,
                "the journal " + journal_.string() + " ends with event " + std::to_string(rows_) +
                    ", and its mirror " + path_.string() +
                    " has further lines: the database has lost events; `xffl journal repair` "
                    "brings back the events that are whole");
  std::error_code unknown;
  const bool is_there = fs::symlink_status(path_, unknown).type() != fs::file_type::not_found;
  const bool is_unread = is_there && (!compared_.is_open() || compared_.bad());
  compared_.close();
  try {
    if (is_unread) {
      keep_aside();
      return rewrite(database);
    }
    if (differs_) return rewrite(database);
    renew();
    add_missing(database);
  } catch (const Error& error) {
    fd_ = UniqueFd();
    log::warning("the journal has no mirror", {{"problem", error.what()}});
  }
}

// The lines that were not read may be events that the database has lost.
void Mirror::keep_aside() {
  const fs::path aside = path_.string() + ".unread-" + std::to_string(::time(nullptr));
  rename_durable(path_, aside);
  log::warning("the journal's mirror could not be read: it is kept, and a new one is written",
               {{"kept", aside.string()}});
}

void Mirror::write(int fd, const std::string& lines, const fs::path& path) {
  write_all(fd, std::as_bytes(std::span(lines)), path);
  bytes_ += lines.size();
}

// A coordinator that is frozen right after its event has the earlier file open, and appends there.
void Mirror::renew() {
  std::ifstream earlier(path_, std::ios::binary);
  if (!earlier) return;
  TempFile file(path_);
  std::vector<char> piece(1 << 20);
  for (uint64_t left = bytes_; left > 0;) {
    earlier.read(piece.data(),
                 static_cast<std::streamsize>(std::min<uint64_t>(left, piece.size())));
    const auto size = static_cast<size_t>(earlier.gcount());
    if (size == 0) throw Error(ErrorKind::kIo, path_.string() + " became shorter");
    write_all(file.fd(), std::as_bytes(std::span(piece.data(), size)), file.path());
    left -= size;
  }
  file.sync();
  file.publish();
}

// Also removes a torn last line.
void Mirror::add_missing(Database& database) {
  std::error_code unknown;
  const bool exists = fs::exists(path_, unknown);
  UniqueFd fd = open_file(path_, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw system_error("stat " + path_.string(), errno);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size < bytes_) return rewrite(database);  // not the file that this store has written
  bool changed = size > bytes_;
  if (changed && ::ftruncate(fd.get(), static_cast<off_t>(bytes_)) != 0)
    throw system_error("truncate " + path_.string(), errno);
  for_each(database, {.first_seq = events_ + 1},
           [&](const StoredEvent& event, const std::string& chain) {
             write(fd.get(), format_mirror_line(event, chain), path_);
             events_ = event.seq;
             changed = true;
           });
  if (changed && ::fdatasync(fd.get()) != 0) throw system_error("fsync " + path_.string(), errno);
  if (!exists) fsync_dir(path_.parent_path());
  fd_ = std::move(fd);
}

void Mirror::rewrite(Database& database) {
  bytes_ = kUnknownBytes;  // until the end: after a failure on the way the old file is still there
  events_ = 0;
  uint64_t bytes = 0;
  TempFile file(path_);
  for_each(database, {}, [&](const StoredEvent& event, const std::string& chain) {
    const std::string line = format_mirror_line(event, chain);
    write_all(file.fd(), std::as_bytes(std::span(line)), file.path());
    bytes += line.size();
    events_ = event.seq;
  });
  file.sync();
  file.publish();
  bytes_ = bytes;
  fd_ = open_file(path_, O_WRONLY | O_APPEND | O_NOFOLLOW);
}

// False when another coordinator, frozen in its start, has renamed its copy over the file: lines
// would go into a file without a name.
bool Mirror::is_at_its_path() const {
  struct stat open {
  }, there{};
  return ::fstat(fd_.get(), &open) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         open.st_ino == there.st_ino && open.st_dev == there.st_dev;
}

void Mirror::append(Database& database, const StoredEvent& event, const std::string& chain) {
  const bool had_failed = !fd_;
  if (fd_ && !is_at_its_path()) fd_ = UniqueFd();
  try {
    if (!fd_) return add_missing(database);
    const std::string line = format_mirror_line(event, chain);
    write_all(fd_.get(), std::as_bytes(std::span(line)), path_);
    if (::fdatasync(fd_.get()) != 0) throw system_error("fsync " + path_.string(), errno);
    bytes_ += line.size();
    events_ = event.seq;
  } catch (const Error& error) {
    fd_ = UniqueFd();
    if (!had_failed)
      log::warning("the journal's mirror was not written: the next event repairs it",
                   {{"problem", error.what()}});
  }
}

namespace {

// Makes the database again and keeps the damaged one, with its log, as `aside`.
void replace_database(const fs::path& path, const std::vector<StoredEvent>& events,
                      const fs::path& aside) {
  const fs::path made = path.string() + ".repaired";
  // Above the epoch of every earlier writer, also of one that is still frozen: their epochs are
  // small numbers, or come from an earlier repair.
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(SystemClock().utc().time_since_epoch());
  write_database(made, events, std::max<int64_t>(readable_epoch(path), now.count()));
  // The new database must not use the damaged one's log.
  for (const char* part : {"-wal", "-shm", "-journal", ""})
    if (fs::exists(path.string() + part))
      rename_durable(path.string() + part, aside.string() + part);
  rename_durable(made, path);
}

// Throws kNotFound when no event is left, and kCorrupt for a loss that the user has not accepted.
void check_loss(const Merged& merged, const fs::path& path, Losses losses) {
  const size_t events = merged.events.size();
  const std::string both = path.string() + " and " + mirror_path(path).string();
  constexpr std::string_view kBackup =
      "; copy journal.db or journal.jsonl from a backup of the run folder, and repeat the command";
  if (events == 0)
    throw Error(ErrorKind::kNotFound, "the journal cannot be rebuilt: neither of " + both +
                                          " has a whole first event" + std::string(kBackup));
  if (merged.lost > 0 && losses == Losses::kRefused)
    throw Error(ErrorKind::kCorrupt,
                both + " are both damaged or lost at event " + std::to_string(events + 1) +
                    ": only the events before it can be kept, and at least " +
                    std::to_string(merged.lost) + " would be lost" + std::string(kBackup) +
                    "; or accept the loss with `xffl journal repair --accept-loss`: the run then "
                    "continues from event " +
                    std::to_string(events) + ", and may train later rounds again");
}

}  // namespace

Repaired repair(const fs::path& path, Losses losses) {
  const WriterLock lock(path);
  const fs::path mirror = mirror_path(path);
  const MirrorLines lines = read_mirror(mirror);
  const int64_t whole_rows = whole_events(path);
  if (whole_rows >= lines.count && fs::exists(path)) return {.events = whole_rows};
  const Merged merged = merge(path, whole_rows, lines);
  check_loss(merged, path, losses);
  Repaired repaired{.events = static_cast<int64_t>(merged.events.size()),
                    .lost_events = merged.lost};
  std::string stamp = format_utc(SystemClock().utc());
  std::erase_if(stamp, [](char c) { return c == ':' || c == '-'; });
  const std::string ending = ".damaged-" + stamp;
  if (repaired.events != whole_rows) {
    repaired.damaged = path.string() + ending;
    replace_database(path, merged.events, repaired.damaged);
  }
  // The next opening would find the lost lines.
  if (merged.lost > 0 && fs::exists(mirror)) {
    repaired.damaged_mirror = mirror.string() + ending;
    rename_durable(mirror, repaired.damaged_mirror);
  }
  return repaired;
}

}  // namespace xffl::history
