#include "trailing_hash.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "xffl/base/error.h"

namespace xffl::checkpoint {
namespace {

constexpr size_t kBlocksKept = 4;
constexpr uint64_t kReadBackBytes = 1u << 19;

}  // namespace

TrailingHash::TrailingHash(int fd, std::filesystem::path path)
    : fd_(fd), path_(std::move(path)), thread_(start_if_granted([this] { run(); })) {}

TrailingHash::~TrailingHash() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void TrailingHash::put(const Block& block) {
  const std::lock_guard lock(mutex_);
  if (blocks_.size() >= kBlocksKept) return;
  blocks_.push_back(block);
  changed_.notify_all();
}

void TrailingHash::written(uint64_t end) {
  const std::lock_guard lock(mutex_);
  written_ = end;
  changed_.notify_all();
}

ManifestFile TrailingHash::finish(uint64_t size, std::string name) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) {
    blocks_.clear();
    while (hashed_ < size) step(lock);
  }
  changed_.wait(lock, [&] { return error_ || hashed_ == size; });
  if (error_) std::rethrow_exception(error_);
  return hash_.finish(std::move(name));
}

bool TrailingHash::has_work() const {
  if (!blocks_.empty() && blocks_.front().offset == hashed_) return true;
  return written_ > hashed_;
}

size_t TrailingHash::read_back(uint64_t offset, uint64_t end) {
  if (!read_back_) read_back_ = std::make_unique_for_overwrite<std::byte[]>(kReadBackBytes);
  const size_t wanted = std::min(end - offset, kReadBackBytes);
  for (;;) {
    const ssize_t count = ::pread(fd_, read_back_.get(), wanted, static_cast<off_t>(offset));
    if (count > 0) return static_cast<size_t>(count);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error("read back " + path_.string(), errno);
    throw Error(ErrorKind::kIo, path_.string() + ": ends at byte " + std::to_string(offset) +
                                    ", but more bytes were written: another program changes it");
  }
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
    const uint64_t begin = hashed_;
    const uint64_t end = blocks_.empty() ? written_ : std::min(written_, blocks_.front().offset);
    lock.unlock();
    count = read_back(begin, end);
    hash_.update({read_back_.get(), count});
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
