// A parallel loop, and threads that process blocks of bytes in order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

namespace xffl {

/// Calls `body(i)` for 0 <= i < count on at most `num_threads` threads, the caller's included; on
/// fewer when the system refuses a thread. An exception ends the loop early; parallel_for()
/// rethrows the exception of the lowest index.
void parallel_for(size_t count, size_t num_threads, const std::function<void(size_t)>& body);

/// Starts a thread for work that the caller can also do by itself. Returns no thread (not joinable)
/// when the system refuses one.
std::jthread start_if_granted(const std::function<void()>& body);

/// Bytes of a file at `offset`, shared between workers.
struct Block {
  uint64_t offset = 0;
  size_t size = 0;
  std::shared_ptr<std::byte[]> bytes;

  std::span<const std::byte> span() const { return {bytes.get(), size}; }
};

/// Reuses the memory of blocks: new pages cost more than processing their bytes. Thread-safe; a
/// taken block may outlive the pool.
class BlockPool {
 public:
  explicit BlockPool(size_t block_bytes);
  std::shared_ptr<std::byte[]> take();
  size_t block_bytes() const { return block_bytes_; }

 private:
  struct Shelf;
  size_t block_bytes_;
  std::shared_ptr<Shelf> shelf_;
};

/// A thread that processes blocks in order. With one worker per task, the production, writing and
/// hashing of a file's bytes overlap.
class BlockWorker {
 public:
  /// The worker's thread calls `work` for each block. After an exception of `work`, the worker
  /// drops later blocks. When the system refuses the thread, put() calls `work`.
  BlockWorker(size_t max_blocks, std::function<void(const Block&)> work);
  ~BlockWorker();  // processes the queued blocks first and drops their errors

  /// Waits while the queue holds `max_blocks` blocks. Rethrows an exception of `work`.
  void put(const Block& block);
  /// Waits until the thread has processed all blocks. Rethrows an exception of `work`.
  void finish();

 private:
  void run();
  void rethrow();  // the caller holds the mutex

  const size_t max_blocks_;
  const std::function<void(const Block&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> blocks_;
  bool busy_ = false;
  bool ending_ = false;
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace xffl
