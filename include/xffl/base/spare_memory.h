// Drops the page cache of files that are no longer read, before new files are written.
//
// A growing file allocates new pages. In a virtual machine that lends free memory to its host a new
// page costs more than writing its bytes (docs/benchmarks.md), and new pages evict useful ones.
// The dropped files stay unchanged: a later read comes from the disk.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>

namespace xffl {

/// Thread-safe.
class SpareMemory {
 public:
  /// Declares that the regular files in `folder` (not in its subfolders) will not be read soon.
  /// Ignores a missing folder.
  void add(const std::filesystem::path& folder);

  /// Call just before writing `bytes`: drops as many bytes of pages of the added files, oldest
  /// first, while there are any. Never fails.
  void release(uint64_t bytes);

 private:
  std::mutex mutex_;
  std::deque<std::filesystem::path> files_;
  uint64_t released_ = 0;  // bytes dropped of files_.front()
};

}  // namespace xffl
