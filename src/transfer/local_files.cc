#include "local_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "xffl/base/sha256.h"
#include "xffl/checkpoint/block_hashes.h"

namespace xffl::transfer {
namespace {

constexpr uint64_t kPieceBytes = 1u << 20;

struct stat stat_of(const UniqueFd& fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw system_error("stat " + path.string(), errno);
  return info;
}

}  // namespace

std::optional<checkpoint::Manifest> parse_if_intact(const std::string& text,
                                                    const std::string& origin) try {
  return checkpoint::parse_manifest(text, origin);
} catch (const Error& error) {
  if (error.kind() != ErrorKind::kCorrupt) throw;
  return std::nullopt;
}

Error differs_from_manifest(const std::filesystem::path& path, const std::string& problem) {
  return Error(ErrorKind::kRejected, path.string() + " differs from its manifest: " + problem +
                                         "; it was changed or damaged after it was written");
}

LocalFile::LocalFile(std::filesystem::path path, const checkpoint::ManifestFile& file)
    : path_(std::move(path)), file_(file), fd_(open_file(path_, O_RDONLY | O_NONBLOCK)) {
  if (!file_.block_xxh3.empty() || file_.size_bytes == 0) return;
  checkpoint::ManifestFile found = checkpoint::hash_file(path_);
  found.name = file_.name;
  if (!(found == file_))
    throw differs_from_manifest(path_,
                                "expected SHA-256 " + file_.sha256 + ", found " + found.sha256);
  file_.block_xxh3 = std::move(found.block_xxh3);
}

void LocalFile::read_unverified(uint64_t offset, std::span<std::byte> out) const {
  size_t found = 0;
  try {
    found = read_at(fd_.get(), offset, out, path_);
  } catch (const UnreadableFile& error) {  // a bad sector: the coordinator can make a model again
    throw differs_from_manifest(path_, error.what());
  }
  if (found < out.size())
    throw differs_from_manifest(path_, "expected " + std::to_string(file_.size_bytes) +
                                           " bytes, found " + std::to_string(offset + found));
}

void LocalFile::check_block(uint64_t index, std::span<const std::byte> bytes) const {
  try {
    checkpoint::check_block(path_, file_, index, bytes);
  } catch (const Error& error) {
    throw Error(ErrorKind::kRejected, error.what());
  }
}

// Verifies the bytes of `out` themselves. The parts of blocks at both ends of `out` need a buffer.
void LocalFile::read(uint64_t offset, std::span<std::byte> out) const {
  using checkpoint::kHashBlockBytes;
  std::vector<std::byte> buffer;
  while (!out.empty()) {
    const uint64_t index = offset / kHashBlockBytes, begin = index * kHashBlockBytes;
    const uint64_t size =
        std::min(kHashBlockBytes, file_.size_bytes - std::min(begin, file_.size_bytes));
    const size_t count = std::min<uint64_t>(out.size(), begin + kHashBlockBytes - offset);
    if (offset == begin && count == size) {
      read_unverified(offset, out.first(count));
      check_block(index, out.first(count));
    } else {
      buffer.resize(size);
      read_unverified(begin, buffer);
      check_block(index, buffer);
      if (offset - begin + count > size)
        throw differs_from_manifest(path_, "a read beyond its end");
      std::copy_n(buffer.begin() + static_cast<ptrdiff_t>(offset - begin), count, out.begin());
    }
    offset += count;
    out = out.subspan(count);
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

PartFile::PartFile(std::filesystem::path path, uint64_t size_limit)
    : path_(std::move(path)), fd_(open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK)) {
  const struct stat info = stat_of(fd_, path_);
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
