// A regular file that is read at offsets and must keep the size that it was opened with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "xffl/base/file.h"

namespace xffl::pack {

class InputFile {
 public:
  /// No symbolic link. Throws kNotFound, kRejected, kIo.
  explicit InputFile(std::filesystem::path path);

  uint64_t size_bytes() const { return size_bytes_; }
  const std::filesystem::path& path() const { return path_; }
  /// Fills `out`; thread-safe. Throws kRejected when the file has ended.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t size_bytes_ = 0;
};

/// A file under its final name that goes away again unless it was kept.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();

  /// Thread-safe.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// Synced.
  void keep();

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  bool kept_ = false;
};

}  // namespace xffl::pack
