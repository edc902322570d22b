#include "xffl/base/threads.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <vector>

namespace xffl {

void parallel_for(size_t count, size_t num_threads, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = count;
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {  // the top of a thread: the caller rethrows the error
        // The threads have already begun all indices below `i`: the loop always sees the lowest
        // failing index.
        next = count;
        const std::lock_guard lock(mutex);
        if (i >= failed) continue;
        failed = i;
        error = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min(num_threads, count); ++i)
      threads.push_back(start_if_granted(work));
    work();
  }
  if (error) std::rethrow_exception(error);
}

std::jthread start_if_granted(const std::function<void()>& body) {
  try {
    return std::jthread(body);
  } catch (const std::system_error&) {  // a limit of the system
    return {};
  }
}

struct BlockPool::Shelf {
  std::mutex mutex;
  std::vector<std::unique_ptr<std::byte[]>> spare;
};

BlockPool::BlockPool(size_t block_bytes)
    : block_bytes_(block_bytes), shelf_(std::make_shared<Shelf>()) {}

std::shared_ptr<std::byte[]> BlockPool::take() {
  std::unique_ptr<std::byte[]> bytes;
  {
    const std::lock_guard lock(shelf_->mutex);
    if (!shelf_->spare.empty()) {
      bytes = std::move(shelf_->spare.back());
      shelf_->spare.pop_back();
    }
  }
  if (!bytes) bytes = std::make_unique_for_overwrite<std::byte[]>(block_bytes_);
  return {bytes.release(), [shelf = shelf_](std::byte* used) {
            const std::lock_guard lock(shelf->mutex);
            shelf->spare.emplace_back(used);
          }};
}

BlockWorker::BlockWorker(size_t max_blocks, std::function<void(const Block&)> work)
    : max_blocks_(max_blocks),
      work_(std::move(work)),
      thread_(start_if_granted([this] { run(); })) {}

BlockWorker::~BlockWorker() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void BlockWorker::put(const Block& block) {
  if (!thread_.joinable()) return work_(block);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || blocks_.size() < max_blocks_; });
  rethrow();
  blocks_.push_back(block);
  changed_.notify_all();
}

void BlockWorker::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || (blocks_.empty() && !busy_); });
  rethrow();
}

void BlockWorker::rethrow() {
  if (error_) std::rethrow_exception(error_);
}

void BlockWorker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !blocks_.empty(); });
    if (blocks_.empty()) return;
    const Block block = std::move(blocks_.front());
    blocks_.pop_front();
    if (error_) continue;
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      work_(block);
    } catch (...) {  // the top of a thread: put() and finish() rethrow the error
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    error_ = error;
    changed_.notify_all();
  }
}

}  // namespace xffl
