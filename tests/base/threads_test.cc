#include "xffl/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/await.h"
#include "support/refused_threads.h"
#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl {
namespace {

TEST(ParallelFor, CallsTheBodyOnceForEachIndex) {
  for (const size_t num_threads : {1u, 3u, 200u}) {
    std::vector<std::atomic<int>> calls(100);
    parallel_for(calls.size(), num_threads, [&](size_t i) { ++calls[i]; });
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
  }
  parallel_for(0, 4, [](size_t) { FAIL(); });
}

TEST(ParallelFor, EndsEarlyAndRethrowsTheErrorOfTheLowestIndex) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<size_t> calls = 0;
    const auto body = [&](size_t i) {
      ++calls;
      if (i >= 5) throw Error(ErrorKind::kRejected, std::to_string(i));
    };
    EXPECT_EQ(test::message_of(ErrorKind::kRejected, [&] { parallel_for(1000, 4, body); }), "5");
    EXPECT_LT(calls, 20u);
  }
}

TEST(ParallelFor, UsesTheThreadsThatTheSystemGrants) {
  for (const int granted : {0, 2}) {
    const test::RefusedThreads refused(granted, 100);
    std::vector<std::atomic<int>> calls(100);
    parallel_for(calls.size(), 4, [&](size_t i) { ++calls[i]; });
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
    EXPECT_TRUE(refused.any());
  }
}

TEST(BlockWorker, FinishWaitsForTheBlockInWorkAndReportsItsError) {
  std::atomic<bool> is_in_work = false;
  BlockWorker worker(2, [&](const Block&) {
    is_in_work = true;
    is_in_work.notify_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    throw Error(ErrorKind::kIo, "the disk is full");
  });
  worker.put({});
  is_in_work.wait(false);
  EXPECT_EQ(test::message_of(ErrorKind::kIo, [&] { worker.finish(); }), "the disk is full");
}

// A whole model would otherwise wait for a slow disk in memory.
TEST(BlockWorker, PutWaitsWhileTheQueueIsFull) {
  std::atomic<bool> may_work = false;
  std::atomic<int> num_put = 0;
  BlockWorker worker(2, [&](const Block&) { may_work.wait(false); });
  std::jthread producer([&] {
    for (int i = 0; i < 10; ++i) {
      worker.put({});
      ++num_put;
    }
  });
  EXPECT_TRUE(test::await([&] { return num_put >= 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(num_put, 3) << "one in work, two in the queue";
  may_work = true;
  may_work.notify_all();
  producer.join();
  worker.finish();
}

// A later block that succeeded would hide the hole in the file.
TEST(BlockWorker, DropsTheBlocksAfterAnError) {
  std::atomic<bool> has_both = false;
  std::vector<uint64_t> offsets;
  {
    BlockWorker worker(2, [&](const Block& block) {
      has_both.wait(false);
      offsets.push_back(block.offset);
      if (block.offset == 0) throw Error(ErrorKind::kIo, "the disk is full");
    });
    worker.put({});
    worker.put({1, 0, nullptr});
    has_both = true;
    has_both.notify_all();
    EXPECT_EQ(test::message_of(ErrorKind::kIo, [&] { worker.finish(); }), "the disk is full");
  }
  EXPECT_EQ(offsets, std::vector<uint64_t>{0});
}

}  // namespace
}  // namespace xffl
