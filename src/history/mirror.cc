// How it works: each event reaches the database first and the mirror second. repair() writes a
// complete new database beside the damaged database and then renames the new database.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <optional>
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

// The event of a line that follows the event number `seq` with the chain `previous`; none for a
// damaged line.
std::optional<StoredEvent> event_of(const std::string& text, int64_t seq,
                                    const std::string& previous) try {
  auto [event, claimed] = parse_mirror_line(text);
  if (event.seq != seq + 1 || next_chain(previous, event) != claimed) return std::nullopt;
  return event;
} catch (const Error&) {
  return std::nullopt;
}

// The events up to the first line that is damaged or does not fit its chain; empty without a
// mirror.
std::vector<StoredEvent> read_mirror(const fs::path& mirror) {
  std::vector<StoredEvent> events;
  std::string chain = genesis_chain();
  std::ifstream file(mirror);
  while (const auto text = next_line(file)) {
    auto event = event_of(*text, static_cast<int64_t>(events.size()), chain);
    if (!event) break;
    chain = next_chain(chain, *event);
    events.push_back(std::move(*event));
  }
  return events;
}

// The number of events of an undamaged database, else -1.
int64_t whole_events(const fs::path& path) {
  try {
    Database database(path);
    if (!check_schema(database)) return 0;
    check_structure(database);
    return for_each_verified(database, [](const auto&, const auto&) {}).events;
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
  compared_.close();
  try {
    if (differs_) return rewrite(database);
    renew();
    add_missing(database);
  } catch (const Error& error) {
    fd_ = UniqueFd();
    log::warning("the journal has no mirror", {{"problem", error.what()}});
  }
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
  const bool exists = fs::exists(path_);
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

void Mirror::append(Database& database, const StoredEvent& event, const std::string& chain) {
  const bool had_failed = !fd_;
  try {
    if (had_failed) return add_missing(database);
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

Repaired repair(const fs::path& path) {
  const WriterLock lock(path);
  const fs::path mirror = mirror_path(path);
  const std::vector<StoredEvent> content = read_mirror(mirror);
  const auto events = static_cast<int64_t>(content.size());
  if (whole_events(path) >= events && fs::exists(path)) return {events, {}};
  if (content.empty())
    throw Error(ErrorKind::kNotFound, "the journal " + path.string() + " is damaged, and " +
                                          mirror.string() +
                                          " has no events to rebuild the journal from");
  const fs::path made = path.string() + ".repaired";
  // Above the epoch of every earlier writer, also of one that is still frozen: their epochs are
  // small numbers, or come from an earlier repair.
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(SystemClock().utc().time_since_epoch());
  write_database(made, content, std::max<int64_t>(readable_epoch(path), now.count()));
  std::string stamp = format_utc(SystemClock().utc());
  std::erase_if(stamp, [](char c) { return c == ':' || c == '-'; });
  const fs::path aside = path.string() + ".damaged-" + stamp;
  // The new database must not use the damaged one's log.
  for (const char* part : {"-wal", "-shm", "-journal", ""})
    if (fs::exists(path.string() + part))
      rename_durable(path.string() + part, aside.string() + part);
  rename_durable(made, path);
  return {events, aside};
}

}  // namespace xffl::history
