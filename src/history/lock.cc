#include "lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/history/store.h"

namespace xffl::history {

namespace {

constexpr uint64_t kMaxLockBytes = 4096;

struct Holder {
  std::string host;
  int64_t pid = 0;
  int64_t start_ticks = 0;
  std::string since;
};

std::string this_host() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown-host";
  return name;
}

std::string describe(const Holder& holder) {
  return "pid " + std::to_string(holder.pid) + " on " + log::printable(holder.host, 256) +
         " since " + log::printable(holder.since, 64);
}

// Empty when the file is empty, damaged or torn: then only the flock speaks.
std::optional<Holder> read_holder(const std::filesystem::path& path) {
  try {
    const Json json = parse_json(read_file(path, kMaxLockBytes), path.string());
    JsonObject object(json, path.string());
    return Holder{object.string("host"), object.integer("pid"), object.integer("start_ticks"),
                  object.string("since")};
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string holder_text(const std::filesystem::path& path) {
  const std::optional<Holder> holder = read_holder(path);
  return holder ? describe(*holder) : "a process that did not say who it is";
}

// File systems where a lock may be seen by one host only, by the numbers of statfs(2).
bool is_network_file_system(int fd) {
  struct statfs info {};
  if (::fstatfs(fd, &info) != 0) return true;
  const auto type = static_cast<uint32_t>(info.f_type);
  const uint32_t network[] = {0x6969,                          // NFS
                              0x0BD00BD0,                      // Lustre
                              0x47504653,                      // GPFS
                              0x19830326,                      // BeeGFS
                              0x00C36400,                      // Ceph
                              0x65735546,                      // FUSE
                              0xFF534D42, 0xFE534D42, 0x517B,  // CIFS, SMB2, SMB
                              0xAAD7AAEA,                      // PanFS
                              0x73757245, 0x5346414F};         // Coda, AFS
  return std::find(std::begin(network), std::end(network), type) != std::end(network);
}

// False when another process has it. lock_holder() may hold it shared for an instant, hence the
// few tries.
bool try_lock(int fd, int operation, int tries, const std::filesystem::path& path) {
  for (;;) {
    if (::flock(fd, operation | LOCK_NB) == 0) return true;
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw system_error("lock " + path.string(), errno);
    if (--tries <= 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void truncate_lock(int fd, const std::filesystem::path& path) {
  if (::ftruncate(fd, 0) != 0 || ::lseek(fd, 0, SEEK_SET) != 0)
    throw system_error("write " + path.string(), errno);
}

void write_holder(int fd, const std::filesystem::path& path) {
  const auto ticks = process_start_ticks(::getpid()).value_or(0);
  const Json json = {{"host", this_host()},
                     {"pid", static_cast<int64_t>(::getpid())},
                     {"start_ticks", static_cast<int64_t>(ticks)},
                     {"since", format_utc(SystemClock().utc())}};
  const std::string text = json.dump() + "\n";
  truncate_lock(fd, path);
  write_all(fd, std::as_bytes(std::span(text.data(), text.size())), path);
  if (::fsync(fd) != 0) throw system_error("fsync " + path.string(), errno);
}

}  // namespace

std::filesystem::path lock_path(const std::filesystem::path& journal) {
  return journal.string() + ".lock";
}

WriterLock::WriterLock(const std::filesystem::path& journal) : path_(lock_path(journal)) {
  fd_ = open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (!try_lock(fd_.get(), LOCK_EX, 10, path_))
    throw Error(ErrorKind::kBusy, "the journal " + journal.string() +
                                      " is in use by another coordinator: " + holder_text(path_) +
                                      "; wait for it or stop it");
  const std::optional<Holder> before = read_holder(path_);
  if (before && before->host != this_host() && is_network_file_system(fd_.get()))
    throw Error(ErrorKind::kBusy, "the journal " + journal.string() +
                                      " is in use by another coordinator: " + describe(*before) +
                                      ", and locks here may not reach that host; make sure that " +
                                      "it no longer runs, remove " + path_.string() +
                                      " and try again");
  if (::fchmod(fd_.get(), 0600) != 0) throw system_error("chmod " + path_.string(), errno);
  write_holder(fd_.get(), path_);
}

WriterLock::~WriterLock() {
  if (::ftruncate(fd_.get(), 0) != 0) return;  // stale text: harmless, see the header
}

std::string lock_holder(const std::filesystem::path& journal) {
  const std::filesystem::path path = lock_path(journal);
  if (!std::filesystem::exists(path)) return "";
  const UniqueFd fd = open_file(path, O_RDONLY);
  if (!try_lock(fd.get(), LOCK_SH, 1, path)) return holder_text(path);
  const std::optional<Holder> holder = read_holder(path);
  if (holder && holder->host != this_host() && is_network_file_system(fd.get()))
    return describe(*holder);
  return "";
}

}  // namespace xffl::history
