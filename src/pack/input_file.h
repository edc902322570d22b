// Files read and written at offsets by several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "xffl/base/file.h"

namespace xffl::pack {

/// A regular file, which must keep its size while open.
class InputFile {
 public:
  /// Does not follow a symbolic link. Throws kNotFound, kRejected, kIo.
  explicit InputFile(std::filesystem::path path);

  uint64_t size_bytes() const { return size_bytes_; }
  const std::filesystem::path& path() const { return path_; }
  /// Fills `out`; thread-safe. Throws kRejected when the file ends before.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t size_bytes_ = 0;
};

/// A new file under its final name; the destructor removes it unless keep() was called.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();

  /// Thread-safe.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// Syncs the file.
  void keep();

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  bool kept_ = false;
};

}  // namespace xffl::pack
