#include "local_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "xffl/base/sha256.h"

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
  const struct stat info = stat_of(fd_, path_);
  std::string key = file_.sha256;
  for (const int64_t part :
       {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
        static_cast<int64_t>(info.st_size), static_cast<int64_t>(info.st_mtim.tv_sec),
        static_cast<int64_t>(info.st_mtim.tv_nsec), static_cast<int64_t>(info.st_ctim.tv_sec),
        static_cast<int64_t>(info.st_ctim.tv_nsec)})
    key += " " + std::to_string(part);
  return key;
}

void CheckedFiles::once(const std::string& content_key, const std::function<bool()>& check) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    auto& known = entries_[content_key];
    if (!known) known = std::make_shared<Entry>();
    entry = known;
  }
  const std::lock_guard lock(entry->mutex);
  if (!entry->verified) entry->verified = check();
}

void CheckedFiles::note(const std::filesystem::path& folder, const checkpoint::Manifest& manifest) {
  for (const checkpoint::ManifestFile& file : manifest.files)
    once(LocalFile(folder / file.name, file).content_key(), [] { return true; });
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
