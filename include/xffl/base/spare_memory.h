// Drops the page cache of files out of use before the program writes new files.
//
// A growing file allocates new pages. In a virtual machine that returns free memory to its host, a
// new page costs more than writing its bytes (docs/benchmarks.md), and new pages evict useful ones.
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
  /// Declares that the regular files in `folder` (not in its subfolders) are out of use: no process
  /// will read the files soon. Ignores a missing folder.
  void add(const std::filesystem::path& folder);

  /// Call just before writing `bytes`: drops up to `bytes` of page cache of the added files, oldest
  /// file first. Never fails.
  void release(uint64_t bytes);

 private:
  std::mutex mutex_;
  std::deque<std::filesystem::path> files_;
  uint64_t released_ = 0;  // the bytes of files_.front() dropped so far
};

}  // namespace xffl
