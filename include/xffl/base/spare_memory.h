// Memory for files that are about to be written: the page cache of files that nobody reads any
// more.
//
// A file that grows takes new pages, which cost more than the bytes in them where a virtual machine
// lends free memory to its host (docs/benchmarks.md), and push out what others would read again.
// Files are not touched: what is read of one later comes from the disk.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>

namespace xffl {

/// Thread-safe.
class SpareMemory {
 public:
  /// The regular files in `folder`, not those below, will not be read soon. Ignores what is not
  /// there.
  void add(const std::filesystem::path& folder);

  /// To be called just before `bytes` are written: gives the system as many bytes of pages back, of
  /// what was added first, as long as there are any. Never fails.
  void release(uint64_t bytes);

 private:
  std::mutex mutex_;
  std::deque<std::filesystem::path> files_;
  uint64_t released_ = 0;  // bytes of files_.front()
};

}  // namespace xffl
