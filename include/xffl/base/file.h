// Files that are whole or absent, descriptors that close themselves, and read-only mappings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace xffl {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Both ends close on exec and block. Throws kIo.
struct Pipe {
  UniqueFd read, write;
};
Pipe make_pipe();

/// Opens with O_CLOEXEC; throws kNotFound or kIo naming `path`.
UniqueFd open_file(const std::filesystem::path& path, int flags, unsigned mode = 0600);

/// Writes all of `bytes` at the descriptor's position; throws kIo with the path, bytes wanted and
/// written.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);
/// The same at `offset`; the position stays.
void write_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
              const std::filesystem::path& path);
/// Asks the system to begin writing these bytes to the disk, so that a later fsync finds less to
/// do. A hint: file systems that do not know it do nothing.
void start_write_back(int fd, uint64_t offset, uint64_t size);
/// Reads from `offset` until `out` is full or the file ends; returns how many bytes there were.
/// Throws kIo.
size_t read_at(int fd, uint64_t offset, std::span<std::byte> out,
               const std::filesystem::path& path);

/// The file's whole content. Throws kCorrupt when it is larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

/// Replaces `path` by `content`: "<path>.tmp", write, fsync, rename, fsync the folder. After a
/// crash the old content or the new one is there, whole; a temp file that was left is used up by
/// the next call. One writer of a path at a time.
void write_file_atomic(const std::filesystem::path& path, std::string_view content,
                       unsigned mode = 0600);

/// mkdir -p with mode 0700 for what it creates.
void make_dirs(const std::filesystem::path& path);

/// Makes preceding renames and creations in the folder durable.
void fsync_dir(const std::filesystem::path& path);

/// rename() that is durable on return; both in the same file system.
void rename_durable(const std::filesystem::path& from, const std::filesystem::path& to);

/// A whole regular file, read-only, mapped. Symbolic links at the last component are followed.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

}  // namespace xffl
