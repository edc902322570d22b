// How it works: a new database is made beside the damaged one, whole, and takes its name.
#include <fcntl.h>

#include <algorithm>

#include "chain.h"
#include "lock.h"
#include "mirror.h"
#include "schema.h"
#include "sqlite.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

// How many events the database holds when all of it is well; -1 when it is damaged.
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

Repaired repair(const fs::path& path) {
  const WriterLock lock(path);
  const fs::path mirror = mirror_path(path);
  const VerifiedEvents content = read_mirror(mirror);
  const auto events = static_cast<int64_t>(content.events.size());
  if (whole_events(path) >= events && fs::exists(path)) return {events, {}};
  if (content.events.empty())
    throw Error(ErrorKind::kNotFound, "the journal " + path.string() + " is damaged, and " +
                                          mirror.string() + " holds nothing to make it from");
  const fs::path made = path.string() + ".repaired";
  write_database(made, content);
  std::string stamp = format_utc(SystemClock().utc());
  std::erase_if(stamp, [](char c) { return c == ':' || c == '-'; });
  const fs::path aside = path.string() + ".damaged-" + stamp;
  // The log of the damaged database must not be taken for the new one's.
  for (const char* part : {"-wal", "-shm", "-journal", ""})
    if (fs::exists(path.string() + part))
      rename_durable(path.string() + part, aside.string() + part);
  rename_durable(made, path);
  return {events, aside};
}

}  // namespace xffl::history
