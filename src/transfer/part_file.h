// The local file that grows while a file arrives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "xffl/base/file.h"

namespace xffl::transfer {

class PartFile {
 public:
  /// Opens or makes a regular file; what is longer than `size_limit` is cut. Throws kIo.
  PartFile(std::filesystem::path path, uint64_t size_limit);

  uint64_t size_at_opening() const { return size_; }
  /// Starts writing to the disk as well, so that finish() has little left to wait for.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// As many bytes as there are, up to out.size().
  size_t read(uint64_t offset, std::span<std::byte> out) const;
  /// fsync, then the final name. Throws kIo; after a failed fsync the file is gone.
  void finish(const std::filesystem::path& name);

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t size_ = 0;
};

}  // namespace xffl::transfer
