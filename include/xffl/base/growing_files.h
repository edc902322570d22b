// Files that one writes front to back while others read what is there already.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "xffl/base/file.h"

namespace xffl {

/// Thread-safe; one thread at a time writes. What was read stays readable when the file gets
/// another name or goes away.
class GrowingFiles {
 public:
  struct File {
    std::string name;
    uint64_t size_bytes = 0;     // once it is whole
    uint64_t written_bytes = 0;  // from its front, which do not change any more
  };

  // The writer's:

  /// The next file, `name` for its readers, lies at `path` and will have `size_bytes`. The one
  /// before is whole. Throws kNotFound, kIo.
  void begin(const std::string& name, const std::filesystem::path& path, uint64_t size_bytes);
  /// So many bytes from the newest file's front are written.
  void written(uint64_t bytes);
  /// No more is written.
  void end();

  // Its readers':

  /// The file number `index`, from 0, as soon as `bytes` of it are written, or all. Empty when they
  /// never will be, or on `stop`.
  std::optional<File> wait(size_t index, uint64_t bytes, const std::stop_token& stop) const;
  /// Fills `out` with what is written at `offset`. Throws kIo.
  void read(size_t index, uint64_t offset, std::span<std::byte> out) const;

 private:
  struct Entry {
    File file;
    std::filesystem::path path;
    UniqueFd fd;
  };

  mutable std::mutex mutex_;
  mutable std::condition_variable_any changed_;
  std::deque<Entry> entries_;  // which keep their places
  bool ended_ = false;
};

}  // namespace xffl
