// run_in_order() with all threads, and in child processes whose memory limit allows fewer.
#include "in_order.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

namespace xffl::pack {
namespace {

constexpr size_t kCount = 200;
constexpr size_t kStackBytes = 64u << 20;

struct Slot {
  size_t value = 0;
};

// The threads that called work(); empty when an index was wrong or out of order.
std::set<int> threads_used(int threads) {
  std::vector<Slot> slots(static_cast<size_t>(2 * threads + 1));
  std::vector<size_t> taken, finished;
  std::mutex mutex;
  std::set<int> worked;
  run_in_order(
      kCount, slots, threads,
      [&](size_t index, Slot& slot) {
        taken.push_back(index);
        slot.value = index;
      },
      [&](size_t, Slot& slot, int thread) {
        slot.value *= 3;
        const std::lock_guard lock(mutex);
        worked.insert(thread);
      },
      [&](size_t index, const Slot& slot) {
        if (slot.value == 3 * index) finished.push_back(index);
      });
  std::vector<size_t> all(kCount);
  std::iota(all.begin(), all.end(), size_t{0});
  return taken == all && finished == all ? worked : std::set<int>();
}

// Limits the address space to `stacks` more thread stacks of 64 MiB.
void limit_to_stacks(size_t stacks) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_setattr_default_np(&attributes);
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const size_t used = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t free = stacks * kStackBytes + kStackBytes / 2;
  const struct rlimit limit { used + free, used + free };
  ::setrlimit(RLIMIT_AS, &limit);
}

// Runs `body` in a child process for at most a minute and returns its result.
bool in_child_process(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    bool holds = false;
    try {
      holds = body();
    } catch (const std::exception&) {
    }
    ::_exit(holds ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) ADD_FAILURE() << "ended by signal " << WTERMSIG(status);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(RunInOrder, RunsAllIndicesInOrder) { EXPECT_FALSE(threads_used(4).empty()); }

// Index 3 takes the slot of index 0.
TEST(RunInOrder, AnIndexStaysInItsSlotUntilItIsFinished) {
  std::vector<Slot> slots(3);
  std::atomic<bool> has_index_3 = false;
  const auto take = [&](size_t index, Slot& slot) {
    slot.value = index;
    if (index == 3) has_index_3 = true;
  };
  const auto work = [](size_t, Slot&, int) {};
  const auto finish = [&](size_t index, const Slot& slot) {
    for (int i = 0; i < 100 && index == 0 && !has_index_3; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (slot.value != index) throw std::runtime_error("the slot has another index");
  };
  EXPECT_NO_THROW(run_in_order(4, slots, 1, take, work, finish));
}

// The thread has taken all three slots when the caller fails.
TEST(RunInOrder, AnErrorOfTheCallerEndsAThreadThatWaitsForASlot) {
  EXPECT_TRUE(in_child_process([] {
    std::vector<Slot> slots(3);
    std::atomic<bool> has_index_2 = false;
    const auto take = [&](size_t index, Slot&) {
      if (index == 2) has_index_2 = true;
    };
    const auto work = [](size_t, Slot&, int) {};
    const auto finish = [&](size_t, const Slot&) {
      while (!has_index_2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw std::runtime_error("stopped");
    };
    try {
      run_in_order(kCount, slots, 1, take, work, finish);
    } catch (const std::runtime_error&) {
      return true;
    }
    return false;
  }));
}

TEST(RunInOrder, ContinuesWithFewerThreads) {
  EXPECT_TRUE(in_child_process([] {
    limit_to_stacks(2);
    const std::set<int> worked = threads_used(4);
    return !worked.empty() && *worked.rbegin() < 3;
  }));
}

TEST(RunInOrder, ContinuesWithTheCallersThreadAlone) {
  EXPECT_TRUE(in_child_process([] {
    limit_to_stacks(0);
    return threads_used(4) == std::set<int>{0};
  }));
}

}  // namespace
}  // namespace xffl::pack
