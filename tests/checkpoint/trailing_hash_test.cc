#include "trailing_hash.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <vector>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::checkpoint {
namespace {

constexpr size_t kBlock = 10'000;
constexpr size_t kBlocks = 97;

std::vector<std::byte> random_bytes(size_t size) {
  std::mt19937 random(5);
  std::vector<std::byte> bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

Block block_of(const std::vector<std::byte>& bytes, size_t index) {
  Block block{index * kBlock, kBlock, std::make_shared<std::byte[]>(kBlock)};
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(block.offset), kBlock, block.bytes.get());
  return block;
}

// Some blocks are written without put(): the hash reads them back.
TEST(TrailingHash, ReadsMissedBlocksBackFromTheFile) {
  const test::TempDir dir;
  const std::vector<std::byte> bytes = random_bytes(kBlocks * kBlock);
  for (const size_t every : {1u, 2u, 7u, 1000u}) {
    const UniqueFd fd = open_file(dir / "f", O_RDWR | O_CREAT | O_TRUNC);
    TrailingHash hash(fd.get(), dir / "f");
    for (size_t i = 0; i < kBlocks; ++i) {
      const Block block = block_of(bytes, i);
      if (i % every == every - 1) hash.put(block);
      write_at(fd.get(), block.offset, block.span(), dir / "f");
      hash.written(block.offset + block.size);
    }
    FileHash whole;
    whole.update(bytes);
    EXPECT_EQ(hash.finish(bytes.size(), "f"), whole.finish("f")) << every;
  }
}

TEST(TrailingHash, ATruncatedFileIsAnError) {
  const test::TempDir dir;
  const UniqueFd fd = open_file(dir / "f", O_RDWR | O_CREAT | O_TRUNC);
  TrailingHash hash(fd.get(), dir / "f");
  hash.written(100);
  EXPECT_THROW(hash.finish(100, "f"), Error);
}

}  // namespace
}  // namespace xffl::checkpoint
