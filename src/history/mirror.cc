// How it works: each event reaches the database first and the mirror second. repair() writes a
// complete new database beside the damaged database and then renames the new database.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <span>

#include "store_parts.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxLineBytes = 32u << 20;  // a payload's 8 MiB, escaped

std::string chain_of(const std::vector<StoredEvent>& events, size_t count) {
  std::string chain = genesis_chain();
  for (size_t i = 0; i < count; ++i) chain = next_chain(chain, events[i]);
  return chain;
}

fs::path mirror_path(const fs::path& journal) {
  return fs::path(journal).replace_extension(".jsonl");
}

// The events up to the first line that is damaged or does not fit its chain; empty without a
// mirror.
VerifiedEvents read_mirror(const fs::path& mirror) {
  VerifiedEvents result;
  result.chain = genesis_chain();
  std::ifstream file(mirror);
  for (std::string text; std::getline(file, text) && !file.eof();) try {
      auto [event, claimed] = parse_mirror_line(text);
      const std::string chain = next_chain(result.chain, event);
      if (chain != claimed || event.seq != static_cast<int64_t>(result.events.size()) + 1) break;
      result.chain = chain;
      result.events.push_back(std::move(event));
    } catch (const Error&) {
      break;  // a torn last line, or damage: the lines before it are valid
    }
  return result;
}

// The number of events of an undamaged database, else -1.
int64_t whole_events(const fs::path& path) {
  try {
    Database database(path);
    if (!check_schema(database)) return 0;
    check_structure(database);
    return static_cast<int64_t>(read_verified(database).events.size());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kNotFound) throw;
    return -1;
  }
}

void write_database(const fs::path& path, const VerifiedEvents& content) {
  fs::remove(path);
  { const UniqueFd fd = open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600); }
  Database database(path);
  database.exec("PRAGMA synchronous = FULL");
  create_or_check_schema(database);
  database.exec("BEGIN IMMEDIATE");
  std::string chain = genesis_chain();
  for (const StoredEvent& event : content.events) {
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

Mirror::Mirror(const fs::path& journal, const VerifiedEvents& truth) : path_(mirror_path(journal)) {
  const VerifiedEvents known = read_mirror(path_);
  const size_t common = std::min(known.events.size(), truth.events.size());
  const bool agrees = chain_of(known.events, common) == chain_of(truth.events, common);
  if (agrees && known.events.size() > common)
    throw Error(ErrorKind::kCorrupt,
                "the journal " + journal.string() + " ends with event " + std::to_string(common) +
                    ", its mirror " + path_.string() + " with event " +
                    std::to_string(known.events.size()) +
                    ": the database has lost events; `xffl journal repair` brings them back");
  try {
    rewrite(truth);
  } catch (const Error& error) {
    log::warning("the journal has no mirror", {{"problem", error.what()}});
  }
}

void Mirror::rewrite(const VerifiedEvents& truth) {
  std::string text, chain = genesis_chain();
  for (const StoredEvent& event : truth.events) {
    chain = next_chain(chain, event);
    text += format_mirror_line(event, chain);
  }
  write_file_atomic(path_, text);
  fd_ = open_file(path_, O_WRONLY | O_APPEND | O_NOFOLLOW);
}

void Mirror::append(const VerifiedEvents& before, const StoredEvent& event,
                    const std::string& chain) {
  const bool had_failed = !fd_;
  try {
    if (had_failed) rewrite(before);
    const std::string line = format_mirror_line(event, chain);
    write_all(fd_.get(), std::as_bytes(std::span(line)), path_);
    if (::fdatasync(fd_.get()) != 0) throw system_error("fsync " + path_.string(), errno);
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
  const VerifiedEvents content = read_mirror(mirror);
  const auto events = static_cast<int64_t>(content.events.size());
  if (whole_events(path) >= events && fs::exists(path)) return {events, {}};
  if (content.events.empty())
    throw Error(ErrorKind::kNotFound, "the journal " + path.string() + " is damaged, and " +
                                          mirror.string() +
                                          " has no events to rebuild the journal from");
  const fs::path made = path.string() + ".repaired";
  write_database(made, content);
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
