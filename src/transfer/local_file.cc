#include "local_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "xffl/base/sha256.h"

namespace xffl::transfer {

namespace {
constexpr uint64_t kPieceBytes = 1u << 20;
}

Error not_as_manifest(const std::filesystem::path& path, const std::string& problem) {
  return Error(ErrorKind::kRejected, path.string() + " is not what its manifest says: " + problem +
                                         "; it was changed or damaged after it was made");
}

LocalFile::LocalFile(std::filesystem::path path, const checkpoint::ManifestFile& file)
    : path_(std::move(path)), file_(file), fd_(open_file(path_, O_RDONLY | O_NONBLOCK)) {}

void LocalFile::read(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("read " + path_.string(), errno);
    if (n == 0)
      throw not_as_manifest(path_, "expected " + std::to_string(file_.size_bytes) +
                                       " bytes, found " + std::to_string(offset + done));
    done += static_cast<size_t>(n);
  }
}

std::string LocalFile::sha256(uint64_t offset, uint64_t length, std::stop_token stop) const {
  Sha256 hash;
  std::vector<std::byte> buffer(std::min(length, kPieceBytes));
  for (uint64_t done = 0; done < length && !stop.stop_requested();) {
    const auto piece = std::span(buffer).first(std::min(length - done, kPieceBytes));
    read(offset + done, piece);
    hash.update(piece);
    done += piece.size();
  }
  return hash.hex();
}

void LocalFile::check(std::stop_token stop) const {
  const std::string found = sha256(0, file_.size_bytes, stop);
  if (stop.stop_requested() || found == file_.sha256) return;
  throw not_as_manifest(path_, "expected SHA-256 " + file_.sha256 + ", found " + found);
}

}  // namespace xffl::transfer
