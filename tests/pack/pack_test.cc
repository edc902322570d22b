#include <gtest/gtest.h>

#include "files.h"
#include "support/temp_dir.h"
#include "support/thrown.h"

namespace xffl::pack {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

constexpr uint64_t kAny = 1ull << 40;

// Packs `after` against `before`, checks that it is unpacked unchanged, and returns the packed
// size.
uint64_t packed_bytes(const std::string& before, const std::string& after, bool with_reference,
                      int threads = 2) {
  const TempDir dir;
  write_bytes(dir / "before", before);
  write_bytes(dir / "after", after);
  const auto raw = described(dir / "after");
  std::optional<Reference> reference;
  if (with_reference) reference = Reference{dir / "before", sha256_file(dir / "before")};
  const auto packed = encode(dir / "after", raw, reference, dir / "packed", kAny, threads);
  EXPECT_TRUE(packed);
  EXPECT_EQ(packed->size_bytes, fs::file_size(dir / "packed"));
  EXPECT_EQ(packed->sha256, sha256_file(dir / "packed"));
  const auto back = decode(dir / "packed", raw, reference, dir / "back", threads);
  EXPECT_EQ(back.sha256, raw.sha256);
  EXPECT_EQ(back.size_bytes, raw.size_bytes);
  EXPECT_EQ(read_bytes(dir / "back"), after);
  return packed->size_bytes;
}

TEST(Pack, RoundTripsAnyTwoFilesOfTheSameSize) {
  const std::vector<size_t> sizes = {
      0, 1, 2, 3, 4095, kBlockBytes - 1, kBlockBytes, kBlockBytes + 1, 3 * kBlockBytes + 7};
  for (const size_t size : sizes)
    for (const bool with_reference : {true, false})
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(std::to_string(size) + (with_reference ? " with" : " without"));
        packed_bytes(noise(size, 1), noise(size, 2), with_reference, threads);
        packed_bytes(noise(size, 1), noise(size, 1), with_reference, threads);
        packed_bytes(noise(size, 1), std::string(size, 'x'), with_reference, threads);
      }
}

// scripts/check_aarch64.sh compares the recorded hashes of two architectures. Integers only,
// without the sign of char: floating-point functions and this sign differ between them.
TEST(Pack, RecordsTheHashOfItsBytes) {
  std::string before = noise(2 * kBlockBytes + 6, 1), after;
  for (size_t i = 0; i < before.size(); i += 2) {
    before[i + 1] =
        static_cast<char>(0x3c | (before[i + 1] & 3));  // the exponents of a model are few
    after += static_cast<char>(before[i] ^ (before[i] & 4 ? 1 : 0));
    after += before[i + 1];
  }
  const TempDir dir;
  write_bytes(dir / "before", before);
  write_bytes(dir / "after", after);
  const Reference reference{dir / "before", sha256_file(dir / "before")};
  const auto raw = described(dir / "after");
  const auto with = encode(dir / "after", raw, reference, dir / "with", kAny, 2);
  const auto without = encode(dir / "after", raw, std::nullopt, dir / "without", kAny, 2);
  ASSERT_TRUE(with && without);
  EXPECT_LT(with->size_bytes, without->size_bytes);
  RecordProperty("with_reference", with->sha256);
  RecordProperty("without_reference", without->sha256);
}

// The planes of a block are the low and the high bytes of its words.
TEST(Pack, RoundTripsPlanesWithOneOtherByte) {
  constexpr size_t kBytes = 2 * 4096;
  for (const size_t other : {size_t{0}, size_t{1}, kBytes / 2, kBytes - 2, kBytes - 1}) {
    SCOPED_TRACE(other);
    std::string file(kBytes, 'x');
    file[other] = 'y';
    packed_bytes(std::string(kBytes, 'x'), file, false);
    packed_bytes(std::string(kBytes, 'x'), file, true);
  }
}

TEST(Pack, NoiseGrowsOnlyByTheHeaders) {
  const size_t size = 4 * kBlockBytes;
  EXPECT_LE(packed_bytes(noise(size, 1), noise(size, 2), true), size + 88 + 4 * 8);
  EXPECT_LE(packed_bytes(noise(size, 1), noise(size, 2), false), size + 88 + 4 * 8);
}

TEST(Pack, AnUnchangedFileTakesTenBytesPerBlock) {
  const std::string file = noise(4 * kBlockBytes, 1);
  EXPECT_EQ(packed_bytes(file, file, true), 88u + 4 * 10);
}

// A step of 3.6e-4 leaves a tenth of the words unchanged, like 50 to 200 optimizer steps at 1e-5.
TEST(Pack, WeightUpdatesCompressToLessThan40Percent) {
  const Weights made = weights(4u << 20, 3.6e-4f);
  const auto raw = static_cast<double>(made.after.size());
  EXPECT_GT(raw / static_cast<double>(packed_bytes(made.before, made.after, true)), 2.6);
  EXPECT_GT(raw / static_cast<double>(packed_bytes(made.before, made.after, false)), 1.35);
}

TEST(Pack, OutputDoesNotDependOnTheThreads) {
  const Weights made = weights(3u << 20, 1e-4f);
  const TempDir dir;
  write_bytes(dir / "before", made.before);
  write_bytes(dir / "after", made.after);
  const Reference reference{dir / "before", sha256_file(dir / "before")};
  const auto one = encode(dir / "after", described(dir / "after"), reference, dir / "1", kAny, 1);
  const auto four = encode(dir / "after", described(dir / "after"), reference, dir / "4", kAny, 4);
  EXPECT_EQ(one->sha256, four->sha256);
}

TEST(Pack, LeavesNoFileAboveTheSizeLimit) {
  const TempDir dir;
  write_bytes(dir / "file", noise(5 * kBlockBytes, 1));
  EXPECT_FALSE(
      encode(dir / "file", described(dir / "file"), {}, dir / "packed", 3 * kBlockBytes, 2));
  EXPECT_FALSE(fs::exists(dir / "packed"));
}

TEST(Pack, RejectsAFileThatDoesNotMatchItsManifest) {
  const TempDir dir;
  write_bytes(dir / "file", noise(1000, 1));
  checkpoint::ManifestFile other = described(dir / "file");
  other.sha256 = std::string(64, 'a');
  EXPECT_EQ(test::kind_of([&] { encode(dir / "file", other, {}, dir / "packed", kAny, 1); }),
            ErrorKind::kRejected);
  EXPECT_FALSE(fs::exists(dir / "packed"));
  write_bytes(dir / "short", noise(999, 1));
  const Reference reference{dir / "short", std::string(64, 'b')};
  EXPECT_EQ(test::kind_of([&] {
              encode(dir / "file", described(dir / "file"), reference, dir / "packed", kAny, 1);
            }),
            ErrorKind::kRejected);
}

}  // namespace
}  // namespace xffl::pack
