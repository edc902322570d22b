#include "xffl/base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "xffl/base/error.h"

namespace xffl {

namespace fs = std::filesystem;

namespace {

// A bad sector is EIO. Other numbers say nothing about the bytes.
[[noreturn]] void fail_read(const fs::path& path, int number) {
  const Error error = system_error("read " + path.string(), number);
  if (number == EIO) throw UnreadableFile(error.what());
  throw error;
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw system_error("make a pipe", errno);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

UniqueFd open_file(const fs::path& path, int flags, unsigned mode) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) throw system_error("open " + path.string(), errno);
  return UniqueFd(fd);
}

RegularFile open_regular(const fs::path& path) {
  struct stat info {};
  const auto check_type = [&] {
    if (S_ISREG(info.st_mode)) return;
    throw Error(ErrorKind::kRejected,
                path.string() + ": expected a regular file (no link, folder or device)");
  };
  if (::lstat(path.c_str(), &info) != 0) throw system_error("stat " + path.string(), errno);
  check_type();
  UniqueFd fd = open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (::fstat(fd.get(), &info) != 0) throw system_error("stat " + path.string(), errno);
  check_type();
  return {std::move(fd), static_cast<uint64_t>(info.st_size)};
}

namespace {

// A write of 2 MiB or more allocates huge pages of page cache. In a virtual machine that has
// returned free memory to its host, writes of 4 MiB cost up to ten times the CPU time.
constexpr size_t kWriteBytes = 512u << 10;

// `write(done, bytes)` makes one system call.
template <class Write>
void write_pieces(std::span<const std::byte> bytes, const fs::path& path, Write write) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(done, bytes.subspan(done, std::min(bytes.size() - done, kWriteBytes)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw system_error("write " + path.string() + " (" + std::to_string(done) + " of " +
                             std::to_string(bytes.size()) + " bytes written)",
                         n < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(n);
  }
}

}  // namespace

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  write_pieces(bytes, path, [&](size_t, std::span<const std::byte> piece) {
    return ::write(fd, piece.data(), piece.size());
  });
}

void write_at(int fd, uint64_t offset, std::span<const std::byte> bytes, const fs::path& path) {
  write_pieces(bytes, path, [&](size_t done, std::span<const std::byte> piece) {
    return ::pwrite(fd, piece.data(), piece.size(), static_cast<off_t>(offset + done));
  });
}

void start_write_back(int fd, uint64_t offset, uint64_t size) {
  ::sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(size),
                    SYNC_FILE_RANGE_WRITE);
}

size_t read_at(int fd, uint64_t offset, std::span<std::byte> out, const fs::path& path) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_read(path, errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

std::string read_file(const fs::path& path, uint64_t max_bytes) {
  UniqueFd fd = open_file(path, O_RDONLY);
  std::string content;
  char block[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_read(path, errno);
    if (n == 0) return content;
    content.append(block, static_cast<size_t>(n));
    if (content.size() > max_bytes)
      throw Error(ErrorKind::kCorrupt, path.string() + " is larger than the " +
                                           std::to_string(max_bytes) + " bytes allowed for it");
  }
}

TempFile::TempFile(const fs::path& path, std::string_view suffix, unsigned mode)
    : path_(path),
      temp_path_(path.string() + std::string(suffix)),
      fd_(open_file(temp_path_, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, mode)) {}

TempFile::~TempFile() {
  if (!published_) ::unlink(temp_path_.c_str());
}

void TempFile::sync() {
  if (::fsync(fd_.get()) != 0) throw system_error("fsync " + temp_path_.string(), errno);
}

void TempFile::publish(const fs::path& to) {
  rename_durable(temp_path_, to);
  published_ = true;
}

void write_file_atomic(const fs::path& path, std::string_view content, unsigned mode) {
  TempFile temp(path, ".tmp", mode);
  write_all(temp.fd(), std::as_bytes(std::span(content.data(), content.size())), temp.path());
  temp.sync();
  temp.publish();
}

void make_dirs(const fs::path& path) {
  std::error_code none;
  if (path.empty() || fs::is_directory(path, none)) return;
  make_dirs(path.parent_path());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw system_error("create the folder " + path.string(), errno);
  if (!fs::is_directory(path, none))
    throw Error(ErrorKind::kIo,
                "cannot create the folder " + path.string() + ": a file is in its place");
}

void fsync_dir(const fs::path& path) {
  UniqueFd fd = open_file(path.empty() ? "." : path, O_RDONLY | O_DIRECTORY);
  // Some network file systems reject fsync of a folder; they order renames themselves.
  if (::fsync(fd.get()) != 0 && errno != EINVAL)
    throw system_error("fsync " + path.string(), errno);
}

void rename_durable(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw system_error("rename " + from.string() + " to " + to.string(), errno);
  fsync_dir(to.parent_path());
}

void require_space(const std::string& where, uint64_t missing, uint64_t free) {
  const uint64_t needed = with_margin(missing);
  if (free >= needed) return;
  throw Error(ErrorKind::kIo, "not enough space in " + where + ": " + std::to_string(needed) +
                                  " bytes are needed, " + std::to_string(free) +
                                  " are free; free at least " + std::to_string(needed - free) +
                                  " bytes (or raise the quota) and run again");
}

void require_space(const fs::path& folder, uint64_t missing) {
  std::error_code problem;
  fs::path there = fs::absolute(folder.empty() ? "." : folder, problem);
  if (problem) return;
  while (!fs::exists(there, problem) && there.has_relative_path()) there = there.parent_path();
  const fs::space_info space = fs::space(there, problem);
  if (!problem) require_space(there.string(), missing, space.available);
}

namespace {

// The mappings of the process, for the handler of SIGBUS, which can take no lock. A mapping outside
// a full table has no name in a message.
struct Mapping {
  std::atomic<const std::byte*> begin = nullptr;  // null: the place is free
  std::atomic<const std::byte*> end = nullptr;    // null: the other members are not valid
  std::atomic<char*> path = nullptr;
};
std::array<Mapping, 1024> mappings;

void add_mapping(std::span<const std::byte> bytes, const fs::path& path) {
  for (Mapping& mapping : mappings) {
    const std::byte* none = nullptr;
    if (!mapping.begin.compare_exchange_strong(none, bytes.data())) continue;
    mapping.path = ::strdup(path.c_str());
    mapping.end = bytes.data() + bytes.size();
    return;
  }
}

void remove_mapping(const std::byte* begin) {
  for (Mapping& mapping : mappings) {
    if (mapping.begin != begin) continue;
    mapping.end = nullptr;
    std::free(mapping.path.exchange(nullptr));
    mapping.begin = nullptr;
    return;
  }
}

// The path of the mapping that holds `address`, or null; lives as long as the mapping.
// Async-signal-safe.
const char* mapped_path(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  for (const Mapping& mapping : mappings) {
    const std::byte* end = mapping.end;
    if (end != nullptr && mapping.begin <= at && at < end) return mapping.path;
  }
  return nullptr;
}

constexpr const char* kUnreadable =
    " cannot be read: the disk is damaged, or the file was cut while it was in use; check the disk "
    "(dmesg) and the file, then run again";

const char* program_of_messages = "";

// Async-signal-safe: appends with memcpy, and writes once.
void on_sigbus(int number, siginfo_t* info, void*) {
  if (info->si_code <= 0 || info->si_code == BUS_ADRALN) {  // kill(), or a bug
    ::signal(number, SIG_DFL);
    ::raise(number);
    return;
  }
  static std::atomic_flag begun;
  while (begun.test_and_set()) ::pause();  // another thread writes the message
  std::array<char, 8192> text;
  size_t size = 0;
  const auto append = [&](const char* part) {
    const size_t count = std::min(std::strlen(part), text.size() - size);
    std::memcpy(text.data() + size, part, count);
    size += count;
  };
  const char* path = mapped_path(info->si_addr);
  append(program_of_messages);
  append(": error (io): ");
  if (path != nullptr) {
    append(path);
    append(kUnreadable);
  } else {  // of a library, such as shared memory between ranks
    append(
        "mapped memory cannot be used: a file system is full (df, also of /dev/shm) or damaged "
        "(dmesg)");
  }
  append(" (SIGBUS)\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), size);
  ::_exit(exit_code(ErrorKind::kIo));
}

}  // namespace

void read_ahead([[maybe_unused]] std::span<const std::byte> bytes) {
#ifdef MADV_POPULATE_READ
  if (bytes.empty()) return;
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(bytes.data()) % page;
  auto* begin = const_cast<std::byte*>(bytes.data()) - before;
  if (::madvise(begin, before + bytes.size(), MADV_POPULATE_READ) == 0) return;
  // Any other number is of the kernel, which then reads the pages at the access.
  if (errno != EFAULT && errno != EIO && errno != EHWPOISON) return;
  const char* path = mapped_path(bytes.data());
  throw UnreadableFile((path != nullptr ? std::string(path) : "a mapped file") + kUnreadable);
#endif
}

void end_on_unreadable_mapping(const char* program) {
  program_of_messages = program;
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  UniqueFd fd = open_file(path, O_RDONLY | O_NONBLOCK);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw system_error("stat " + path.string(), errno);
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::kCorrupt, path.string() + " is not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) throw system_error("map " + path.string(), errno);
  data_ = static_cast<const std::byte*>(data);
  add_mapping(bytes(), path_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  remove_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace xffl
