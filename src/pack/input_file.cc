#include "input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "xffl/base/error.h"

namespace xffl::pack {

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = open_file(path_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw system_error("stat " + path_.string(), errno);
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::kRejected, path_.string() + ": expected a regular file");
  size_bytes_ = static_cast<uint64_t>(info.st_size);
}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  if (read_at(fd_.get(), offset, out, path_) != out.size())
    throw Error(ErrorKind::kRejected, path_.string() +
                                          ": the file shrank during reading: it ends " +
                                          "before byte " + std::to_string(offset + out.size()));
}

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), fd_(open_file(path_, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW)) {}

OutputFile::~OutputFile() {
  if (!kept_) ::unlink(path_.c_str());
}

void OutputFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  write_at(fd_.get(), offset, bytes, path_);
  start_write_back(fd_.get(), offset, bytes.size());
}

void OutputFile::keep() {
  if (::fsync(fd_.get()) != 0) throw system_error("fsync " + path_.string(), errno);
  kept_ = true;
}

}  // namespace xffl::pack
