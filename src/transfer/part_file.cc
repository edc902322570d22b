#include "part_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "xffl/base/error.h"

namespace xffl::transfer {
namespace {

// At 2 MiB a write takes huge pages, which are the memory that a virtual machine has lent back to
// its host: 4 MiB a write cost ten times as much CPU as this.
constexpr size_t kWriteBytes = 512u << 10;

}  // namespace

PartFile::PartFile(std::filesystem::path path, uint64_t size_limit)
    : path_(std::move(path)), fd_(open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK)) {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw system_error("stat " + path_.string(), errno);
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::kIo, path_.string() + " is in the way: it is not a regular file");
  size_ = static_cast<uint64_t>(info.st_size);
  if (size_ <= size_limit) return;
  if (::ftruncate(fd_.get(), static_cast<off_t>(size_limit)) != 0)
    throw system_error("cut " + path_.string(), errno);
  size_ = size_limit;
}

void PartFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd_.get(), bytes.data() + done, std::min(bytes.size() - done, kWriteBytes),
                 static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw system_error("write " + path_.string() + " (" + std::to_string(done) + " of " +
                             std::to_string(bytes.size()) + " bytes at " + std::to_string(offset) +
                             " written)",
                         n < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(n);
  }
  // A hint: some file systems do not know it, and fsync comes in any case.
  ::sync_file_range(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes.size()),
                    SYNC_FILE_RANGE_WRITE);
}

size_t PartFile::read(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("read " + path_.string(), errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void PartFile::finish(const std::filesystem::path& name) {
  if (::fsync(fd_.get()) != 0) throw system_error("fsync " + path_.string(), errno);
  rename_durable(path_, name);
}

}  // namespace xffl::transfer
