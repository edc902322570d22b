#include "trailing_hash.h"

#include "xffl/base/error.h"
#include "xffl/base/fast_hash.h"
#include "xffl/base/file.h"

namespace xffl::checkpoint {
namespace {

constexpr size_t kBlocksKept = 4;

}  // namespace

TrailingHash::TrailingHash(int fd, std::filesystem::path path)
    : fd_(fd), path_(std::move(path)), thread_(start_if_granted([this] { run(); })) {}

TrailingHash::~TrailingHash() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void TrailingHash::put(const Block& block) {
  std::unique_lock lock(mutex_);
  if (blocks_.size() < kBlocksKept) {
    blocks_.push_back(block);
    changed_.notify_all();
    return;
  }
  lock.unlock();
  const Missed missed{block.offset, block.size, fast_hash(block.span())};
  lock.lock();
  missed_.push_back(missed);
}

void TrailingHash::written(uint64_t end) {
  const std::lock_guard lock(mutex_);
  written_ = end;
  changed_.notify_all();
}

ManifestFile TrailingHash::finish(uint64_t size, std::string name) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) {
    while (hashed_ < size) step(lock);
  }
  changed_.wait(lock, [&] { return error_ || hashed_ == size; });
  if (error_) std::rethrow_exception(error_);
  return hash_.finish(std::move(name));
}

bool TrailingHash::has_work() const {
  if (!blocks_.empty() && blocks_.front().offset == hashed_) return true;
  return !missed_.empty() && missed_.front().offset == hashed_ &&
         missed_.front().offset + missed_.front().size <= written_;
}

void TrailingHash::read_back(const Missed& missed) {
  read_back_.resize(missed.size);
  const size_t count = read_at(fd_, missed.offset, read_back_, path_);
  if (count < missed.size)
    throw Error(ErrorKind::kIo, path_.string() + ": ends at byte " +
                                    std::to_string(missed.offset + count) +
                                    ", but more bytes were written: another program changes it");
  if (fast_hash(read_back_) != missed.xxh3)
    throw Error(ErrorKind::kIo,
                path_.string() + ": the bytes " + std::to_string(missed.offset) + " to " +
                    std::to_string(missed.offset + missed.size) +
                    " differ from those that were just written (XXH3): the disk damages them, or "
                    "another program changes them; check the disk (dmesg), then run again");
}

void TrailingHash::step(std::unique_lock<std::mutex>& lock) {
  size_t count = 0;
  if (!blocks_.empty() && blocks_.front().offset == hashed_) {
    const Block block = std::move(blocks_.front());
    blocks_.pop_front();
    lock.unlock();
    hash_.update(block.span());
    count = block.size;
  } else {
    const Missed missed = missed_.front();
    missed_.pop_front();
    lock.unlock();
    read_back(missed);
    hash_.update(read_back_);
    count = missed.size;
  }
  lock.lock();
  hashed_ += count;
}

void TrailingHash::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || (!error_ && has_work()); });
    if (ending_) return;
    try {
      step(lock);
    } catch (...) {  // the top of a thread: finish() rethrows it
      if (!lock.owns_lock()) lock.lock();
      error_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

}  // namespace xffl::checkpoint
