// Atomic file writes, owned file descriptors, read-only mappings, and checks of free disk space.
//
// A mapping of a damaged disk, or of a file that was cut, has pages that cannot be read. An access
// to such a page raises SIGBUS; read_ahead() throws before the access, and
// end_on_unreadable_mapping() names the file in the other cases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"

namespace xffl {

/// A kIo error of a read: the disk has the bytes, and cannot deliver them (a bad sector), or a
/// mapped file has lost them.
class UnreadableFile : public Error {
 public:
  explicit UnreadableFile(std::string message) : Error(ErrorKind::kIo, std::move(message)) {}
};

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

/// An open regular file and its size.
struct RegularFile {
  UniqueFd fd;
  uint64_t size_bytes = 0;
};
/// Opens a regular file for reading, without following a symbolic link. Throws kNotFound or kIo;
/// throws kRejected, without blocking, for a symbolic link, folder, pipe or device.
RegularFile open_regular(const std::filesystem::path& path);

/// Writes all of `bytes` at the descriptor's position. Throws kIo with the path, the number of
/// bytes written and the number expected.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);
/// Writes all of `bytes` at `offset`; the descriptor's position stays unchanged.
void write_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
              const std::filesystem::path& path);
/// Asks the kernel to start writing bytes [offset, offset + size) to the disk, which shortens a
/// later fsync. File systems without support ignore this hint.
void start_write_back(int fd, uint64_t offset, uint64_t size);
/// Reads from `offset` until `out` is full or the file ends; returns the number of bytes read.
/// Throws kIo, as UnreadableFile for EIO.
size_t read_at(int fd, uint64_t offset, std::span<std::byte> out,
               const std::filesystem::path& path);

/// The file's whole content. Throws kCorrupt when the content is larger than `max_bytes`,
/// UnreadableFile for EIO.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

/// Replaces `path` by `content`: "<path>.tmp", write, fsync, rename, fsync the folder. After a
/// crash the path holds the whole old content or the whole new content; the next call overwrites a
/// stale temp file. A path may have one writer at a time.
void write_file_atomic(const std::filesystem::path& path, std::string_view content,
                       unsigned mode = 0600);

/// A new file under a temporary name, open for reading and writing.
class TempFile {
 public:
  /// Creates "<path><suffix>" or truncates a stale file of this name.
  explicit TempFile(const std::filesystem::path& path, std::string_view suffix = ".tmp",
                    unsigned mode = 0600);
  ~TempFile();  // removes an unpublished file
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  int fd() const { return fd_.get(); }
  const std::filesystem::path& path() const { return temp_path_; }
  void sync();
  /// Renames the file to `path`; call sync() first.
  void publish() { publish(path_); }
  /// Renames the file to `to` in the same file system instead.
  void publish(const std::filesystem::path& to);

 private:
  const std::filesystem::path path_, temp_path_;
  UniqueFd fd_;
  bool published_ = false;
};

/// mkdir -p; the created folders have mode 0700.
void make_dirs(const std::filesystem::path& path);

/// Makes preceding renames and creations in the folder durable.
void fsync_dir(const std::filesystem::path& path);

/// rename() that is durable on return; both paths are in the same file system.
void rename_durable(const std::filesystem::path& from, const std::filesystem::path& to);

/// The free bytes that writing `bytes` requires: folders and other files grow as well.
inline uint64_t with_margin(uint64_t bytes) { return bytes + bytes / 64 + (1u << 20); }

/// Throws kIo with the needed and the free bytes unless `free` holds `missing` and a margin.
/// `where` names the folder.
void require_space(const std::string& where, uint64_t missing, uint64_t free);
/// Checks the file system of a folder on this machine (empty: the current folder), or of the
/// folder's nearest existing ancestor. A file system that does not report free space passes.
void require_space(const std::filesystem::path& folder, uint64_t missing);

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

/// Reads the pages of `bytes`, a part of a MappedFile, in one call, which replaces a page fault for
/// every few pages. Throws UnreadableFile, naming the file, for pages that cannot be read. Kernels
/// before 5.14 read no page here.
void read_ahead(std::span<const std::byte> bytes);

/// Ends the process, from now on, when an access to a mapping raises SIGBUS: with a message of
/// `program` (a literal) on standard error, which names the file of a MappedFile, and with the exit
/// code of kIo.
void end_on_unreadable_mapping(const char* program);

}  // namespace xffl
