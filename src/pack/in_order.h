// A parallel loop with ordered input and output.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace xffl::pack {

template <class Slot, class Take, class Work, class Finish>
void run_serially(size_t count, Slot& slot, Take& take, Work& work, Finish& finish) {
  for (size_t index = 0; index < count; ++index) {
    take(index, slot);
    work(index, slot, 0);
    finish(index, slot);
  }
}

/// For every index below `count`, run_in_order() calls `take(index, slot)`, in order and one at a
/// time; `work(index, slot, thread)`, in parallel; and `finish(index, slot)`, in order, in the
/// caller's thread. The indices share `slots` as a ring. The loop ends at the first error and
/// rethrows the error. If the system allows fewer than `threads` threads, the loop uses the allowed
/// threads, or only the caller's thread.
template <class Slot, class Take, class Work, class Finish>
void run_in_order(size_t count, std::vector<Slot>& slots, int threads, Take take, Work work,
                  Finish finish) {
  std::mutex mutex, taking;
  std::condition_variable changed;
  size_t next = 0, finished = 0;
  std::vector<bool> ready(slots.size(), false);
  std::exception_ptr problem;

  const auto fail = [&](std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (!problem) problem = error;
    changed.notify_all();
  };
  const auto loop = [&](int thread) {
    for (;;) {
      std::unique_lock turn(taking);
      std::unique_lock lock(mutex);
      changed.wait(lock,
                   [&] { return problem || next == count || next < finished + slots.size(); });
      if (problem || next == count) return;
      const size_t index = next++;
      lock.unlock();
      Slot& slot = slots[index % slots.size()];
      try {
        take(index, slot);
      } catch (...) {
        // fail() precedes turn.unlock(): otherwise the next thread would take the wrong input for
        // its index.
        return fail(std::current_exception());
      }
      turn.unlock();
      work(index, slot, thread);
      lock.lock();
      ready[index % slots.size()] = true;
      changed.notify_all();
    }
  };
  const auto guarded = [&](int thread) {
    try {
      loop(thread);
    } catch (...) {  // the top of a thread: the caller rethrows the error
      fail(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> workers;
    workers.reserve(static_cast<size_t>(threads));
    try {
      for (int i = 0; i < threads; ++i) workers.emplace_back(guarded, i);
    } catch (const std::exception&) {  // a limit of the system: continue with fewer threads
    }
    if (workers.empty()) return run_serially(count, slots.front(), take, work, finish);
    try {
      for (size_t index = 0; index < count; ++index) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return problem || ready[index % slots.size()]; });
        if (problem) break;
        lock.unlock();
        finish(index, slots[index % slots.size()]);
        lock.lock();
        ready[index % slots.size()] = false;
        ++finished;
        changed.notify_all();
      }
    } catch (...) {  // the workers end before the caller rethrows the error
      fail(std::current_exception());
    }
  }
  if (problem) std::rethrow_exception(problem);
}

}  // namespace xffl::pack
