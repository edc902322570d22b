#include "arriving_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "names.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"

namespace xffl::transfer {
namespace {

namespace fs = std::filesystem;
using checkpoint::ManifestFile;

// The part file, opened for appending, with the hash of the bytes that it holds.
class Part {
 public:
  Part(fs::path path, uint64_t size_limit)
      : path_(std::move(path)),
        fd_(open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK)),
        buffer_(kBlockBytes) {
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) throw system_error("stat " + path_.string(), errno);
    if (!S_ISREG(info.st_mode))
      throw Error(ErrorKind::kIo, path_.string() + " is in the way: it is not a regular file");
    if (static_cast<uint64_t>(info.st_size) > size_limit)
      clear();
    else
      read_present();
  }

  uint64_t size() const { return size_; }

  void append(std::span<const std::byte> bytes) {
    write_all(fd_.get(), bytes, path_);
    hash_.update(bytes);
    size_ += bytes.size();
  }
  void clear() {
    if (::ftruncate(fd_.get(), 0) != 0) throw system_error("empty " + path_.string(), errno);
    if (::lseek(fd_.get(), 0, SEEK_SET) != 0) throw system_error("rewind " + path_.string(), errno);
    hash_ = Sha256();
    size_ = 0;
  }
  /// Up to `limit` bytes of room for the next block.
  std::span<std::byte> room(uint64_t limit) {
    return std::span(buffer_).first(std::min<uint64_t>(limit, buffer_.size()));
  }
  std::string take_hash() { return hash_.hex(); }
  void finish(const fs::path& name) {
    if (::fsync(fd_.get()) != 0) throw system_error("fsync " + path_.string(), errno);
    rename_durable(path_, name);
  }

 private:
  void read_present() {
    for (;;) {
      const ssize_t n = ::read(fd_.get(), buffer_.data(), buffer_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw system_error("read " + path_.string(), errno);
      if (n == 0) return;
      hash_.update(std::span(buffer_).first(static_cast<size_t>(n)));
      size_ += static_cast<uint64_t>(n);
    }
  }

  fs::path path_;
  UniqueFd fd_;
  std::vector<std::byte> buffer_;
  Sha256 hash_;
  uint64_t size_ = 0;
};

std::string bytes_text(uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

// Fills the part from the far file. Returns what is wrong, in words; empty when nothing is.
std::string bring(remote::Session& session, const RemotePath& path, const ManifestFile& file,
                  Part& part, Meter& meter) {
  const auto info = session.stat(path);
  if (!info)
    throw Error(ErrorKind::kNotFound,
                path.str() + " is named by the facility's manifest.json but does not exist there");
  if (info->type != remote::FileInfo::Type::kRegular)
    throw Error(ErrorKind::kRejected, path.str() +
                                          " at the facility is refused: expected a "
                                          "regular file, found a folder, link or device");
  if (info->size_bytes != file.size_bytes)
    return "expected " + bytes_text(file.size_bytes) + ", found " + bytes_text(info->size_bytes);
  while (part.size() < file.size_bytes) {
    meter.check("fetching " + path.str());
    const auto room = part.room(file.size_bytes - part.size());
    const size_t n = session.read(path, part.size(), room);
    if (n == 0 || n > room.size())
      return "expected " + bytes_text(file.size_bytes) + ", found an end after " +
             bytes_text(part.size());
    part.append(room.first(n));
    meter.moved(n);
  }
  const std::string found = part.take_hash();
  if (found == file.sha256) return {};
  return "expected SHA-256 " + file.sha256 + ", found " + found;
}

// True when an earlier call has finished the file; what has the name but not the content goes.
bool present(const fs::path& path, const ManifestFile& file) {
  std::error_code problem;
  if (!fs::is_regular_file(fs::symlink_status(path, problem))) return false;
  if (fs::file_size(path, problem) == file.size_bytes && sha256_file(path) == file.sha256)
    return true;
  fs::remove(path, problem);
  return false;
}

}  // namespace

void fetch_file(remote::Session& session, const RemotePath& from, const ManifestFile& file,
                const fs::path& work, Meter& meter) {
  const fs::path name = work / file.name;
  if (present(name, file)) return meter.present(file.size_bytes);
  const RemotePath path = from / file.name;
  Part part(work / part_name(file.name), file.size_bytes);
  meter.present(part.size());
  std::string problem;
  for (int attempt = 0; attempt < 2; ++attempt) {
    problem = bring(session, path, file, part, meter);
    if (problem.empty()) return part.finish(name);
    meter.undo(part.size());
    part.clear();
  }
  throw Error(ErrorKind::kRejected, path.str() +
                                        " at the facility, fetched twice, is not what "
                                        "its manifest says: " +
                                        problem);
}

}  // namespace xffl::transfer
