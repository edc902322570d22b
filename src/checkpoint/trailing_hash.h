// Hashes a file during writing. The hash may lag behind the writing. A TrailingHash keeps a few
// blocks in memory and reads the other blocks back from the file, usually from the page cache. A
// block on the disk may be damaged by then: its bytes count only if they have the XXH3 of the bytes
// that were in memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "xffl/base/threads.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::checkpoint {

class TrailingHash {
 public:
  /// `fd` is open for reading and writing and outlives this object; `path` names the file in
  /// errors.
  TrailingHash(int fd, std::filesystem::path path);
  ~TrailingHash();

  /// Takes the file's next bytes before the caller writes the bytes; never waits. The caller puts
  /// all bytes of the file, from one thread.
  void put(const Block& block);
  /// Declares that the file holds the bytes [0, end).
  void written(uint64_t end);
  /// Waits until the thread has hashed all `size` bytes; the caller has written these bytes before.
  /// Without a thread, hashes the bytes. Throws kIo, naming the file, for bytes that cannot be read
  /// back or differ from those of put().
  ManifestFile finish(uint64_t size, std::string name);

 private:
  void run();
  bool has_work() const;  // the caller holds the mutex
  void step(std::unique_lock<std::mutex>& lock);

  // A block that put() did not keep in memory.
  struct Missed {
    uint64_t offset;
    size_t size;
    uint64_t xxh3;
  };
  void read_back(const Missed& missed);

  const int fd_;
  const std::filesystem::path path_;
  FileHash hash_;  // only the thread uses hash_ until all bytes are hashed
  std::vector<std::byte> read_back_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> blocks_;
  std::deque<Missed> missed_;
  uint64_t written_ = 0;
  uint64_t hashed_ = 0;
  bool ending_ = false;
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace xffl::checkpoint
