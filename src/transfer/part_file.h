// The local part file of a download.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "xffl/base/file.h"

namespace xffl::transfer {

class PartFile {
 public:
  /// Opens or creates a regular file and truncates it to `size_limit`. Throws kIo.
  PartFile(std::filesystem::path path, uint64_t size_limit);

  uint64_t size_at_opening() const { return size_; }
  /// Also starts the write-back to disk, so that the fsync of finish() is short.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// Reads up to out.size() bytes; fewer at the end of the file.
  size_t read(uint64_t offset, std::span<std::byte> out) const;
  /// fsync, then renames to `name`. Throws kIo; a failed fsync removes the file.
  void finish(const std::filesystem::path& name);

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t size_ = 0;
};

}  // namespace xffl::transfer
