#include "growing_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "xffl/base/error.h"

namespace xffl::exports {
namespace {

constexpr size_t kBlockBytes = 1 << 20;

}  // namespace

GrowingFile::GrowingFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw system_error("stat " + path_.string(), errno);
  if (!S_ISREG(info.st_mode)) reject("it is no regular file");
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0)
    throw Error(ErrorKind::kBusy, "another process writes " + path_.string() + ": try again later");
  had_bytes_ = static_cast<uint64_t>(info.st_size);
}

void GrowingFile::add(std::string_view bytes) {
  buffer_ += bytes;
  position_ += bytes.size();
  if (buffer_.size() >= kBlockBytes) flush();
}

void GrowingFile::flush() {
  const uint64_t begin = position_ - buffer_.size();
  const uint64_t known =
      std::min<uint64_t>(had_bytes_ - std::min(had_bytes_, begin), buffer_.size());
  std::string there(known, '\0');
  if (read_at(fd_.get(), begin, std::as_writable_bytes(std::span(there)), path_) != known)
    reject("it has become shorter");
  const auto differs = std::mismatch(there.begin(), there.end(), buffer_.begin()).first;
  if (differs != there.end())
    reject("byte " + std::to_string(begin + static_cast<uint64_t>(differs - there.begin())) +
           " differs");
  write_at(fd_.get(), begin + known, std::as_bytes(std::span(buffer_)).subspan(known), path_);
  buffer_.clear();
}

void GrowingFile::finish() {
  flush();
  if (had_bytes_ > position_)
    reject("it has " + std::to_string(had_bytes_) + " bytes, this export has " +
           std::to_string(position_));
  if (::fsync(fd_.get()) != 0) throw system_error("fsync " + path_.string(), errno);
}

void GrowingFile::reject(const std::string& problem) const {
  throw Error(ErrorKind::kRejected,
              path_.string() + " is no earlier export of this run, or metrics of the run were " +
                  "removed since: " + problem + "; export to another folder");
}

}  // namespace xffl::exports
