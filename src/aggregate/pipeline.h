// Computes the blocks of a model with many threads and writes the blocks in order.
//
// A tensor consists of blocks of kBlockElements. A worker takes the next block and computes the
// bytes of the block for every output into a slot of a bounded ring. One writer per output consumes
// the ring in order. The bytes of a block depend only on the block, not on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "xffl/checkpoint/safetensors.h"

namespace xffl::aggregate {

inline constexpr uint64_t kBlockElements = 128 * 1024;

struct Block {
  size_t tensor_index = 0;
  uint64_t begin = 0;  // element in the tensor
  uint64_t count = 0;
};

/// The blocks of a list of tensors, in order, by index.
class BlockList {
 public:
  explicit BlockList(const std::vector<checkpoint::TensorSpec>& tensors);
  uint64_t size() const { return first_.back(); }
  Block at(uint64_t index) const;

 private:
  std::vector<uint64_t> elements_;  // per tensor
  std::vector<uint64_t> first_;     // index of each tensor's first block, then the number of blocks
};

using Bytes = std::vector<std::byte>;
/// Computes one block: outputs[i] gets the bytes of the block for output i. Any worker may call
/// this function.
using Compute = std::function<void(const Block&, std::span<Bytes> outputs)>;
/// Takes the bytes of the next block. One thread calls this function, in order.
using Write = std::function<void(std::span<const std::byte>)>;

/// Returns when the writers have written all blocks. Rethrows damage of an input (kCorrupt), else a
/// writer's error, else the error of the earliest failing block, independent of the threads'
/// timing. 0 threads: one per available CPU.
void run_pipeline(const BlockList& blocks, int num_threads, const Compute& compute,
                  const std::vector<Write>& writes);

/// A part of a file mapping, read ahead by the constructor and dropped by the destructor: a process
/// that reads a whole model keeps only a few blocks resident. The bytes stay readable afterwards.
class PageWindow {
 public:
  /// Throws UnreadableFile, naming the file, for bytes that the disk cannot read. A caller with
  /// block hashes verifies the bytes before, which throws kCorrupt: such a file can be made again.
  explicit PageWindow(std::span<const std::byte> bytes);
  ~PageWindow();
  PageWindow(const PageWindow&) = delete;
  PageWindow& operator=(const PageWindow&) = delete;

 private:
  std::byte* begin_;
  size_t size_;
};

/// Calls `body` for every block, in any order, without output. Threads and errors are as in
/// run_pipeline().
void for_each_block(const BlockList& blocks, const std::function<void(const Block&)>& body);

}  // namespace xffl::aggregate
