// Atomic file writes, owned file descriptors and read-only mappings.
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

/// A pipe with two blocking close-on-exec ends. Throws kIo.
struct Pipe {
  UniqueFd read, write;
};
Pipe make_pipe();

/// Opens with O_CLOEXEC; throws kNotFound or kIo naming `path`.
UniqueFd open_file(const std::filesystem::path& path, int flags, unsigned mode = 0600);

/// Writes all of `bytes` at the descriptor's position. Throws kIo with the path, the number of
/// bytes written and the number expected.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);
/// Writes all of `bytes` at `offset` and leaves the descriptor's position.
void write_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
              const std::filesystem::path& path);
/// Asks the kernel to start writing these bytes to the disk, which shortens a later fsync. A hint:
/// file systems without support ignore it.
void start_write_back(int fd, uint64_t offset, uint64_t size);
/// Reads from `offset` until `out` is full or the file ends; returns the number of bytes read.
/// Throws kIo.
size_t read_at(int fd, uint64_t offset, std::span<std::byte> out,
               const std::filesystem::path& path);

/// The file's whole content. Throws kCorrupt when it is larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

/// Replaces `path` by `content`: "<path>.tmp", write, fsync, rename, fsync the folder. After a
/// crash the path holds the whole old content or the whole new content; the next call overwrites a
/// stale temp file. One writer of a path at a time.
void write_file_atomic(const std::filesystem::path& path, std::string_view content,
                       unsigned mode = 0600);

/// mkdir -p; the created folders have mode 0700.
void make_dirs(const std::filesystem::path& path);

/// Makes preceding renames and creations in the folder durable.
void fsync_dir(const std::filesystem::path& path);

/// rename() that is durable on return; both paths are in the same file system.
void rename_durable(const std::filesystem::path& from, const std::filesystem::path& to);

/// A read-only mapping of a whole regular file. Follows a symbolic link at the last component.
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
