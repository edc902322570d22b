#include "xffl/base/stage.h"

namespace xffl {

Stage::Stage(size_t max_blocks, std::function<void(const Block&)> work)
    : max_blocks_(max_blocks), work_(std::move(work)), thread_([this] { run(); }) {}

Stage::~Stage() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void Stage::put(const Block& block) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return problem_ || blocks_.size() < max_blocks_; });
  rethrow();
  blocks_.push_back(block);
  changed_.notify_all();
}

void Stage::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return problem_ || (blocks_.empty() && !busy_); });
  rethrow();
}

void Stage::rethrow() {
  if (problem_) std::rethrow_exception(problem_);
}

void Stage::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !blocks_.empty(); });
    if (blocks_.empty()) return;
    const Block block = std::move(blocks_.front());
    blocks_.pop_front();
    if (problem_) continue;
    busy_ = true;
    lock.unlock();
    std::exception_ptr problem;
    try {
      work_(block);
    } catch (...) {  // the top of a thread: it goes on in the caller's
      problem = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    problem_ = problem;
    changed_.notify_all();
  }
}

}  // namespace xffl
