// A thread that works off blocks of bytes in order, so that what makes them, disk and hash go on
// side by side.
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

/// Bytes of a file on their way through the stages, which share them.
struct Block {
  uint64_t offset = 0;
  size_t size = 0;
  std::shared_ptr<std::byte[]> bytes;

  std::span<const std::byte> span() const { return {bytes.get(), size}; }
};

/// Memory of blocks that is used again: new pages cost more than what is done with them.
/// Thread-safe; what was taken may outlive the pool.
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

class Stage {
 public:
  /// `work` is called by the stage's thread; when it throws, later blocks are dropped.
  Stage(size_t max_blocks, std::function<void(const Block&)> work);
  ~Stage();  // after the blocks that are in it; their errors are lost

  /// Waits while the stage is full. Throws what `work` threw.
  void put(const Block& block);
  /// Waits until the stage is empty. Throws what `work` threw.
  void finish();

 private:
  void run();
  void rethrow();  // with the mutex held

  const size_t max_blocks_;
  const std::function<void(const Block&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> blocks_;
  bool busy_ = false;
  bool ending_ = false;
  std::exception_ptr problem_;
  std::jthread thread_;
};

}  // namespace xffl
