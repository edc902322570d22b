#include "part_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "xffl/base/error.h"

namespace xffl::transfer {

PartFile::PartFile(std::filesystem::path path, uint64_t size_limit)
    : path_(std::move(path)), fd_(open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK)) {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw system_error("stat " + path_.string(), errno);
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::kIo, path_.string() + " exists and is not a regular file");
  size_ = static_cast<uint64_t>(info.st_size);
  if (size_ <= size_limit) return;
  if (::ftruncate(fd_.get(), static_cast<off_t>(size_limit)) != 0)
    throw system_error("truncate " + path_.string(), errno);
  size_ = size_limit;
}

void PartFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  write_at(fd_.get(), offset, bytes, path_);
  start_write_back(fd_.get(), offset, bytes.size());
}

size_t PartFile::read(uint64_t offset, std::span<std::byte> out) const {
  return read_at(fd_.get(), offset, out, path_);
}

void PartFile::finish(const std::filesystem::path& name) {
  if (::fsync(fd_.get()) != 0) {
    // After a failed fsync the kernel may mark unwritten pages clean, so a later read proves
    // nothing about the disk. The next call fetches the whole file again.
    const int problem = errno;
    std::error_code none;
    std::filesystem::remove(path_, none);
    throw system_error("fsync " + path_.string(), problem);
  }
  rename_durable(path_, name);
}

}  // namespace xffl::transfer
