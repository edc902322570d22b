#include "trailing_hash.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "support/await.h"
#include "support/refused_threads.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/model_folder.h"

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

// Puts all blocks before it writes the first one: the hash keeps few of them in memory. Calls
// `damage` before the hash may read the file.
ManifestFile hash_of_late_writes(
    const std::filesystem::path& path, const std::vector<std::byte>& bytes,
    const std::function<void()>& damage = [] {}) {
  const UniqueFd fd = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
  TrailingHash hash(fd.get(), path);
  for (size_t i = 0; i < kBlocks; ++i) hash.put(block_of(bytes, i));
  write_at(fd.get(), 0, bytes, path);
  damage();
  hash.written(bytes.size());
  return hash.finish(bytes.size(), "f");
}

TEST(TrailingHash, ReadsMissedBlocksBackFromTheFile) {
  const test::TempDir dir;
  const std::vector<std::byte> bytes = random_bytes(kBlocks * kBlock);
  FileHash whole;
  whole.update(bytes);
  const ManifestFile expected = whole.finish("f");
  for (int i = 0; i < 20; ++i) {  // the hash's thread takes other blocks each time
    const ManifestFile found = hash_of_late_writes(dir / "f", bytes);
    EXPECT_EQ(found, expected);
    EXPECT_EQ(found.block_xxh3, expected.block_xxh3);
  }
  const test::RefusedThreads refused(0, 1000);
  EXPECT_EQ(hash_of_late_writes(dir / "f", bytes), expected);
}

TEST(TrailingHash, DamageOfAMissedBlockIsAnError) {
  const test::TempDir dir;
  const std::vector<std::byte> bytes = random_bytes(kBlocks * kBlock);
  const test::RefusedThreads refused(0, 1000);  // only the first blocks stay in memory then
  const std::string message = test::message_of(ErrorKind::kIo, [&] {
    hash_of_late_writes(dir / "f", bytes, [&] {
      const UniqueFd fd = open_file(dir / "f", O_RDWR);
      const std::vector<std::byte> other{~bytes[70 * kBlock + 5]};
      write_at(fd.get(), 70 * kBlock + 5, other, dir / "f");
    });
  });
  EXPECT_THAT(message, testing::HasSubstr((dir / "f").string() + ": the bytes 700000 to 710000"));
}

// The speed of the hash's thread decides whether it misses a block.
TEST(TrailingHash, DamageThatItsThreadFindsIsAnError) {
  const test::TempDir dir;
  const std::vector<std::byte> bytes = random_bytes(kBlocks * kBlock), zeros(bytes.size());
  test::Thrown thrown;
  EXPECT_TRUE(test::await([&] {
    thrown = test::thrown_by([&] {
      hash_of_late_writes(dir / "f", bytes, [&] {
        const UniqueFd fd = open_file(dir / "f", O_RDWR);
        write_at(fd.get(), 0, zeros, dir / "f");
      });
    });
    return thrown.message != "no error was thrown";
  }));
  EXPECT_EQ(thrown.kind, ErrorKind::kIo);
  EXPECT_THAT(thrown.message, testing::HasSubstr("differ from those that were just written"));
}

TEST(TrailingHash, AModelIsWrittenWithoutItsThreads) {
  const test::TempDir dir;
  const std::vector<TensorSpec> tensors = {{"a", Dtype::kF32, {5000}}, {"b", Dtype::kF32, {5000}}};
  const std::vector<std::byte> bytes = random_bytes(20'000);
  const auto write = [&](const std::string& name) {
    ModelWriter writer(dir / name, tensors, 20'000);
    for (size_t i = 0; i < tensors.size(); ++i) writer.write(bytes);
    return writer.finish();
  };
  const std::vector<ManifestFile> files = write("with");
  const test::RefusedThreads refused(0, 1000);
  EXPECT_EQ(write("without"), files);
  EXPECT_TRUE(refused.any());
}

TEST(TrailingHash, ATruncatedFileIsAnError) {
  const test::TempDir dir;
  const std::vector<std::byte> bytes = random_bytes(kBlocks * kBlock);
  const test::RefusedThreads refused(0, 1000);
  const std::string message = test::message_of(ErrorKind::kIo, [&] {
    hash_of_late_writes(dir / "f", bytes,
                        [&] { std::filesystem::resize_file(dir / "f", 70 * kBlock + 5); });
  });
  EXPECT_THAT(message, testing::HasSubstr("ends at byte 700005"));
}

}  // namespace
}  // namespace xffl::checkpoint
