// The hash of a file that is being written, which may lag behind: what it has not kept in memory it
// reads back from the file, that is from the page cache.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "xffl/base/block_worker.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::checkpoint {

class TrailingHash {
 public:
  /// `fd` is open for reading, too, and must outlive this object; `path` is for messages.
  TrailingHash(int fd, std::filesystem::path path);
  ~TrailingHash();

  /// The file's next bytes, soon to be written; never waits.
  void put(const Block& block);
  /// Bytes [0, end) are in the file.
  void written(uint64_t end);
  /// Waits until all `size` bytes are hashed, which must have been written; throws what reading
  /// did.
  ManifestFile finish(uint64_t size, std::string name);

 private:
  void run();
  bool has_work() const;  // with the mutex held
  void step(std::unique_lock<std::mutex>& lock);
  size_t read_back(uint64_t offset, uint64_t end);

  const int fd_;
  const std::filesystem::path path_;
  FileHash hash_;                      // of the thread, until it has ended
  std::unique_ptr<std::byte[]> back_;  // what was read back
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> blocks_;
  uint64_t written_ = 0;
  uint64_t hashed_ = 0;
  bool ending_ = false;
  std::exception_ptr problem_;
  std::jthread thread_;
};

}  // namespace xffl::checkpoint
