#include "local_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "xffl/base/sha256.h"

namespace xffl::transfer {

namespace {
constexpr uint64_t kPieceBytes = 1u << 20;
}

Error differs_from_manifest(const std::filesystem::path& path, const std::string& problem) {
  return Error(ErrorKind::kRejected, path.string() + " differs from its manifest: " + problem +
                                         "; it was changed or damaged after it was written");
}

LocalFile::LocalFile(std::filesystem::path path, const checkpoint::ManifestFile& file)
    : path_(std::move(path)), file_(file), fd_(open_file(path_, O_RDONLY | O_NONBLOCK)) {}

void LocalFile::read(uint64_t offset, std::span<std::byte> out) const {
  const size_t found = read_at(fd_.get(), offset, out, path_);
  if (found < out.size())
    throw differs_from_manifest(path_, "expected " + std::to_string(file_.size_bytes) +
                                           " bytes, found " + std::to_string(offset + found));
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

bool LocalFile::check(std::stop_token stop) const {
  const std::string found = sha256(0, file_.size_bytes, stop);
  if (found == file_.sha256) return true;
  if (stop.stop_requested()) return false;
  throw differs_from_manifest(path_, "expected SHA-256 " + file_.sha256 + ", found " + found);
}

std::string LocalFile::content_key() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw system_error("stat " + path_.string(), errno);
  std::string key = file_.sha256;
  for (const int64_t part :
       {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
        static_cast<int64_t>(info.st_size), static_cast<int64_t>(info.st_mtim.tv_sec),
        static_cast<int64_t>(info.st_mtim.tv_nsec), static_cast<int64_t>(info.st_ctim.tv_sec),
        static_cast<int64_t>(info.st_ctim.tv_nsec)})
    key += " " + std::to_string(part);
  return key;
}

}  // namespace xffl::transfer
