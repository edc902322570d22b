#include <fcntl.h>
#include <mntent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "store_parts.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/history/store.h"

namespace xffl::history {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxLockBytes = 4096;

constexpr const char* kMounts = "/proc/self/mounts";
constexpr std::string_view kNetwork[] = {
    "nfs",         "nfs4",         "lustre",         "gpfs",         "beegfs",    "ceph",
    "cifs",        "smb3",         "smbfs",          "panfs",        "wekafs",    "afs",
    "coda",        "orangefs",     "pvfs2",          "glusterfs",    "gfs2",      "ocfs2",
    "quobyte",     "fuse.sshfs",   "fuse.glusterfs", "fuse.ceph",    "fuse.s3fs", "fuse.rclone",
    "fuse.cvmfs2", "fuse.juicefs", "fuse.gcsfuse",   "fuse.quobyte", "fuse.mfs"};

struct EndMounts {
  void operator()(FILE* file) const { ::endmntent(file); }
};

bool holds(const fs::path& folder, const fs::path& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

struct Holder {
  std::string host;
  int64_t pid = 0;
  int64_t start_ticks = 0;
  std::string since;
};

std::string describe(const Holder& holder) {
  return "pid " + std::to_string(holder.pid) + " on " + log::printable(holder.host, 256) +
         " since " + log::printable(holder.since, 64);
}

// None when the file is empty, damaged or torn: then only the flock counts. Throws kIo when the
// file cannot be read: it may name the coordinator of another host, which the flock does not reach.
std::optional<Holder> read_holder(const fs::path& path) {
  try {
    const Json json = parse_json(read_file(path, kMaxLockBytes), path.string());
    JsonObject object(json, path.string());
    return Holder{object.string("host"), object.integer("pid"), object.integer("start_ticks"),
                  object.string("since")};
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    return std::nullopt;
  }
}

std::string holder_text(const fs::path& path) try {
  const std::optional<Holder> holder = read_holder(path);
  return holder ? describe(*holder) : "an unknown process";
} catch (const Error&) {
  return "an unknown process";
}

// False when another process holds the lock. Tries a few times, because lock_holder() may take a
// shared lock for an instant.
bool try_lock(int fd, int operation, int tries, const fs::path& path) {
  for (;;) {
    if (::flock(fd, operation | LOCK_NB) == 0) return true;
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw system_error("lock " + path.string(), errno);
    if (--tries <= 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void write_holder(int fd, const fs::path& path) {
  const auto ticks = process_start_ticks(::getpid()).value_or(0);
  const Json json = {{"host", this_host()},
                     {"pid", static_cast<int64_t>(::getpid())},
                     {"start_ticks", static_cast<int64_t>(ticks)},
                     {"since", format_utc(SystemClock().utc())}};
  const std::string text = json.dump() + "\n";
  if (::ftruncate(fd, 0) != 0 || ::lseek(fd, 0, SEEK_SET) != 0)
    throw system_error("write " + path.string(), errno);
  write_all(fd, std::as_bytes(std::span(text.data(), text.size())), path);
  if (::fsync(fd) != 0) throw system_error("fsync " + path.string(), errno);
}

// The kind of the deepest mount that holds `path`; empty: unknown.
std::string file_system_kind(const fs::path& path, const fs::path& mounts) {
  std::error_code unknown;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path, unknown), unknown);
  if (unknown) return "";
  const std::unique_ptr<FILE, EndMounts> table(::setmntent(mounts.c_str(), "re"));
  if (table == nullptr) return "";
  std::vector<char> buffer(1u << 16);  // for one line; container layers make long lines
  std::string kind;
  size_t depth = 0;  // a later mount hides an earlier mount in the same place
  mntent mount{};
  while (::getmntent_r(table.get(), &mount, buffer.data(), static_cast<int>(buffer.size())) !=
         nullptr) {
    const fs::path folder = mount.mnt_dir;
    const auto length = static_cast<size_t>(std::distance(folder.begin(), folder.end()));
    if (!holds(folder, whole) || length < depth) continue;
    depth = length;
    kind = mount.mnt_type;
  }
  return kind;
}

// Whether a lock may be invisible to other hosts: on a network file system, on FUSE, and on a file
// system of unknown kind.
bool lock_may_be_local(const fs::path& path) {
  const std::string kind = file_system_kind(path, kMounts);
  return kind.empty() || kind.starts_with("fuse") || !network_file_system(path).empty();
}

fs::path lock_path(const fs::path& journal) { return journal.string() + ".lock"; }

}  // namespace

std::string this_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown-host";
}

WriterLock::WriterLock(const fs::path& journal) : path_(lock_path(journal)) {
  fd_ = open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (!try_lock(fd_.get(), LOCK_EX, 10, path_))
    throw Error(ErrorKind::kBusy, "the journal " + journal.string() +
                                      " is in use by another coordinator: " + holder_text(path_) +
                                      "; wait for it or stop it; if it is frozen and cannot be "
                                      "stopped, remove " +
                                      path_.string() + " and try again");
  const std::optional<Holder> before = read_holder(path_);
  if (before && before->host != this_host() && lock_may_be_local(path_))
    throw Error(ErrorKind::kBusy, "the journal " + journal.string() +
                                      " is in use by another coordinator: " + describe(*before) +
                                      ", and locks here may not reach that host; make sure that " +
                                      "this coordinator has ended, remove " + path_.string() +
                                      " and try again");
  if (::fchmod(fd_.get(), 0600) != 0) throw system_error("chmod " + path_.string(), errno);
  write_holder(fd_.get(), path_);
}

WriterLock::~WriterLock() {
  if (::ftruncate(fd_.get(), 0) != 0) return;  // stale text: harmless, see the header
}

std::string lock_holder(const fs::path& journal) {
  const fs::path path = lock_path(journal);
  if (!std::filesystem::exists(path)) return "";
  const UniqueFd fd = open_file(path, O_RDONLY);
  if (!try_lock(fd.get(), LOCK_SH, 1, path)) return holder_text(path);
  const std::optional<Holder> holder = read_holder(path);
  if (holder && holder->host != this_host() && lock_may_be_local(path)) return describe(*holder);
  return "";
}

std::string network_file_system(const fs::path& path, const fs::path& mounts) {
  const std::string kind = file_system_kind(path, mounts);
  return std::find(std::begin(kNetwork), std::end(kNetwork), kind) != std::end(kNetwork) ? kind
                                                                                         : "";
}

}  // namespace xffl::history
