#include "pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/await.h"
#include "support/failing_call.h"
#include "support/kernel_reads_ahead.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::aggregate {
namespace {

// One worker has four slots: block 4 takes the slot of block 0.
TEST(Pipeline, ABlockStaysInItsSlotUntilEveryOutputHasIt) {
  const BlockList blocks({{"w", checkpoint::Dtype::kF32, {5 * kBlockElements}}});
  std::atomic<bool> has_block_4 = false;
  std::vector<int> fast, slow;
  run_pipeline(
      blocks, 1,
      [&](const Block& block, std::span<Bytes> outputs) {
        const uint64_t index = block.begin / kBlockElements;
        for (Bytes& bytes : outputs) bytes.assign(1, static_cast<std::byte>(index));
        if (index == 4) has_block_4 = true;
      },
      {[&](std::span<const std::byte> bytes) { fast.push_back(std::to_integer<int>(bytes[0])); },
       [&](std::span<const std::byte> bytes) {
         for (int i = 0; i < 100 && slow.empty() && !has_block_4; ++i)
           std::this_thread::sleep_for(std::chrono::milliseconds(1));
         slow.push_back(std::to_integer<int>(bytes[0]));
       }});
  EXPECT_THAT(fast, testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(slow, testing::ElementsAre(0, 1, 2, 3, 4));
}

// Block 0 reads bytes that the thread of block 1 verifies, and finds a NaN in them.
TEST(Pipeline, DamageOfAnInputPrecedesTheErrorOfAnEarlierBlock) {
  const BlockList blocks({{"w", checkpoint::Dtype::kF32, {2 * kBlockElements}}});
  std::atomic<bool> verifies = false, has_failed = false;
  const auto await = [](const std::atomic<bool>& flag) {
    for (int i = 0; i < 10'000 && !flag; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const test::Thrown thrown = test::thrown_by([&] {
    run_pipeline(blocks, 2,
                 [&](const Block& block, std::span<Bytes>) {
                   if (block.begin == 0) {
                     await(verifies);
                     has_failed = true;
                     throw Error(ErrorKind::kRejected, "not finite");
                   }
                   verifies = true;
                   await(has_failed);
                   std::this_thread::sleep_for(std::chrono::milliseconds(20));
                   throw Error(ErrorKind::kCorrupt, "damaged");
                 },
                 {[](std::span<const std::byte>) {}});
  });
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_EQ(thrown.message, "damaged");
}

// Sets the flag when the calling thread ends: the pipeline then has the thread's error.
void note_end_of_thread(std::atomic<bool>& ended) {
  struct Note {
    std::atomic<bool>* flag = nullptr;
    ~Note() {
      if (flag != nullptr) *flag = true;
    }
  };
  thread_local Note note;
  note.flag = &ended;
}

// Four threads compute the blocks, which fail in the order 1, 3, 2, 0. If block 3 raised the limit
// again, block 2 would replace the error, and an output could wait for block 1 without end.
TEST(Pipeline, NamesTheEarliestOfSeveralDamagedBlocks) {
  constexpr std::array<size_t, 4> kBefore{2, 1, 3, 1};
  const BlockList blocks({{"w", checkpoint::Dtype::kF32, {4 * kBlockElements}}});
  std::atomic<int> num_started = 0;
  std::array<std::atomic<bool>, 4> ended{};
  const test::Thrown thrown = test::thrown_by([&] {
    run_pipeline(blocks, 4,
                 [&](const Block& block, std::span<Bytes>) {
                   const size_t index = block.begin / kBlockElements;
                   note_end_of_thread(ended.at(index));
                   ++num_started;
                   test::await([&] { return num_started == 4; });
                   if (index != 1) test::await([&] { return ended.at(kBefore.at(index)).load(); });
                   throw Error(index == 0 ? ErrorKind::kRejected : ErrorKind::kCorrupt,
                               "block " + std::to_string(index));
                 },
                 {[](std::span<const std::byte>) {}});
  });
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_EQ(thrown.message, "block 1");
}

// A full disk fails a write. One worker has four slots, and waits when all of them are filled.
TEST(Pipeline, TheErrorOfAWriterEndsEveryThread) {
  for (const uint64_t count : {uint64_t{3}, uint64_t{100}})
    for (const size_t failing : {size_t{0}, size_t{1}}) {
      const auto run = [&] {
        ::alarm(60);
        const BlockList blocks(
            {{"w", checkpoint::Dtype::kF32, {static_cast<int64_t>(count * kBlockElements)}}});
        std::atomic<bool> has_last_slot = false;
        const auto compute = [&](const Block& block, std::span<Bytes>) {
          if (block.begin / kBlockElements + 1 == std::min<uint64_t>(count, 4))
            has_last_slot = true;
        };
        std::vector<Write> writes(2, [](std::span<const std::byte>) {});
        writes[failing] = [&](std::span<const std::byte>) {
          test::await([&] { return has_last_slot.load(); });
          throw Error(ErrorKind::kIo, "no space left");
        };
        const test::Thrown thrown =
            test::thrown_by([&] { run_pipeline(blocks, 1, compute, writes); });
        return thrown.message == "no space left" ? 0 : 1;
      };
      ASSERT_EQ(test::in_child(run), 0) << count << " blocks, output " << failing;
    }
}

// An access to the bytes would end the process by SIGBUS.
TEST(PageWindow, NamesAFileThatCannotBeRead) {
  const test::TempDir dir;
  write_file_atomic(dir / "a", std::string(1 << 20, 'x'));
  const MappedFile file(dir / "a");
  if (!test::kernel_reads_ahead(file)) GTEST_SKIP() << "this kernel does not read ahead";
  std::filesystem::resize_file(dir / "a", 1000);
  EXPECT_THAT(test::message_of(ErrorKind::kIo, [&] { PageWindow window(file.bytes().last(10)); }),
              testing::HasSubstr((dir / "a").string() + " cannot be read"));
}

}  // namespace
}  // namespace xffl::aggregate
