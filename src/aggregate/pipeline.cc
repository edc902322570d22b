#include "pipeline.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/resources.h"

namespace xffl::aggregate {

BlockList::BlockList(const std::vector<checkpoint::TensorSpec>& tensors) {
  first_.push_back(0);
  for (const checkpoint::TensorSpec& spec : tensors) {
    elements_.push_back(static_cast<uint64_t>(spec.num_elements()));
    first_.push_back(first_.back() + (elements_.back() + kBlockElements - 1) / kBlockElements);
  }
}

Block BlockList::at(uint64_t index) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), index);
  const size_t tensor = static_cast<size_t>(after - first_.begin()) - 1;
  const uint64_t begin = (index - first_[tensor]) * kBlockElements;
  return {tensor, begin, std::min(kBlockElements, elements_[tensor] - begin)};
}

namespace {

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

bool is_damage(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& each) {
    return each.kind() == ErrorKind::kCorrupt;
  } catch (const std::exception&) {
    return false;
  }
}

class Pipeline {
 public:
  Pipeline(const BlockList& blocks, int num_threads, const Compute& compute,
           const std::vector<Write>& writes)
      : blocks_(blocks),
        num_threads_(num_threads),
        compute_(compute),
        writes_(writes),
        limit_(blocks.size()),
        slots_(2 * static_cast<size_t>(num_threads) + 2),
        cursors_(writes.size(), 0) {
    for (Slot& slot : slots_) slot.outputs.resize(writes.size());
  }

  void run() {
    if (!run_in_threads()) run_serially();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // Returns false when the system refuses a thread that the pipeline needs. No thread has computed
  // or written a block then.
  bool run_in_threads() {
    std::vector<std::jthread> threads;
    const size_t num_consumers = writes_.size() - 1;
    threads.reserve(num_consumers + static_cast<size_t>(num_threads_));
    try {
      for (size_t i = 1; i <= num_consumers; ++i) threads.emplace_back([this, i] { consume(i); });
      for (int i = 0; i < num_threads_; ++i) threads.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // a limit of the system
    }
    if (threads.size() <= num_consumers) {
      const std::lock_guard lock(mutex_);
      limit_ = 0;  // ends the consumers
      changed_.notify_all();
      return false;
    }
    consume(0);
    return true;
  }

  void run_serially() {
    std::vector<Bytes>& outputs = slots_.front().outputs;
    for (uint64_t index = 0; index < blocks_.size(); ++index) {
      compute_(blocks_.at(index), outputs);
      for (size_t i = 0; i < writes_.size(); ++i) writes_[i](outputs[i]);
    }
  }

  struct Slot {
    uint64_t ready_for = UINT64_MAX;  // the index of the complete block in the slot
    std::vector<Bytes> outputs;
  };

  uint64_t slowest() const { return *std::min_element(cursors_.begin(), cursors_.end()); }

  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return next_ >= limit_ || next_ < slowest() + slots_.size(); });
      if (next_ >= limit_) return;
      const uint64_t index = next_++;
      Slot& slot = slots_[index % slots_.size()];
      lock.unlock();
      try {
        compute_(blocks_.at(index), slot.outputs);
      } catch (...) {
        fail(index);
        continue;
      }
      lock.lock();
      slot.ready_for = index;
      changed_.notify_all();
    }
  }

  void consume(size_t output) {
    std::unique_lock lock(mutex_);
    uint64_t& cursor = cursors_[output];
    for (;;) {
      changed_.wait(lock, [&] {
        return cursor >= limit_ || slots_[cursor % slots_.size()].ready_for == cursor;
      });
      if (cursor >= limit_) return;
      const Slot& slot = slots_[cursor % slots_.size()];
      lock.unlock();
      try {
        writes_[output](slot.outputs[output]);
      } catch (...) {
        fail(0);
        return;
      }
      lock.lock();
      ++cursor;
      changed_.notify_all();
    }
  }

  // The threads still compute and write the blocks before `index`: an earlier block may fail, too.
  // Damage of an input precedes other errors: one thread verifies the damaged bytes (BlockCheck),
  // and another thread may have met them as a number that is not finite.
  void fail(uint64_t index) {
    const std::exception_ptr error = std::current_exception();
    const bool damage = is_damage(error);
    const std::lock_guard lock(mutex_);
    if (!error_ || (damage == has_damage_ ? index < limit_ : damage)) {
      error_ = error;
      has_damage_ = damage;
    }
    limit_ = std::min(limit_, index);
    changed_.notify_all();
  }

  const BlockList& blocks_;
  const int num_threads_;
  const Compute& compute_;
  const std::vector<Write>& writes_;

  std::mutex mutex_;  // guards the members below, but not the bytes of a slot
  std::condition_variable changed_;
  uint64_t next_ = 0;
  uint64_t limit_;  // the threads compute only blocks below this index
  std::vector<Slot> slots_;
  std::vector<uint64_t> cursors_;
  std::exception_ptr error_;
  bool has_damage_ = false;  // of error_
};

}  // namespace

// The constructor rounds both ends down: the last page may also belong to the next block, whose
// window drops the page.
PageWindow::PageWindow(std::span<const std::byte> bytes) {
  const size_t page = page_bytes();
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const size_t before = address % page;
  begin_ = const_cast<std::byte*>(bytes.data()) - before;
  size_ = before + bytes.size();
  read_ahead(bytes);
}

PageWindow::~PageWindow() {
  const size_t whole = size_ - size_ % page_bytes();
  if (whole > 0) (void)::madvise(begin_, whole, MADV_DONTNEED);
}

void run_pipeline(const BlockList& blocks, int num_threads, const Compute& compute,
                  const std::vector<Write>& writes) {
  Pipeline(blocks, num_threads > 0 ? num_threads : available_cpus(), compute, writes).run();
}

void for_each_block(const BlockList& blocks, const std::function<void(const Block&)>& body) {
  run_pipeline(blocks, 0, [&](const Block& block, std::span<Bytes>) { body(block); },
               {[](std::span<const std::byte>) {}});
}

}  // namespace xffl::aggregate
