// Damage of the local files of a push, before and during the push: no damaged byte gets its final
// name at the facility.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "folders.h"
#include "local_files.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {
namespace {

// Damages the file behind `path` before the upload's `call`-th block.
class DamagingSession final : public test::FakeSession {
 public:
  std::function<void(uint64_t offset)> before_block;

  void upload(const RemotePath& path, uint64_t offset, uint64_t length,
              const remote::Source& source, std::stop_token stop) override {
    test::FakeSession::upload(
        path, offset, length,
        [&](uint64_t at, std::span<std::byte> out) {
          if (before_block) before_block(at);
          source(at, out);
        },
        stop);
  }
};

void flip(const fs::path& path, size_t at) {
  std::string bytes = read_file(path, 1u << 30);
  bytes.at(at) ^= 1;
  // In place: an open file sees the damage.
  const UniqueFd fd = open_file(path, O_WRONLY);
  write_at(fd.get(), at, std::as_bytes(std::span(bytes)).subspan(at, 1), path);
}

TEST(LocalDamage, NoDamagedByteGetsItsFinalName) {
  const checkpoint::Manifest manifest = manifest_of(sample_files());
  for (const size_t at : {0ul, 5'000'000ul, 9'000'000ul}) {
    const test::TempDir dir;
    put_local(dir / "model", sample_files());
    test::FakeSession facility;
    push(facility, dir / "model", manifest, RemotePath("/scratch/one"), {});
    flip(dir / "model/model.safetensors", at);
    const auto push_to = [&] {
      push(facility, dir / "model", manifest, RemotePath("/scratch/two"), {});
    };
    EXPECT_EQ(error_of(push_to).kind(), ErrorKind::kRejected);
    EXPECT_FALSE(facility.stat(RemotePath("/scratch/two/model.safetensors")));
    EXPECT_FALSE(facility.stat(RemotePath("/scratch/two/.model.safetensors.part")));
    flip(dir / "model/model.safetensors", at);
    push_to();
    EXPECT_EQ(facility.content("/scratch/two/model.safetensors"),
              sample_files().at("model.safetensors"));
  }
}

// A push resumes within a block: it reads parts of blocks, too.
TEST(LocalDamage, OfAPartOfABlockIsNoticed) {
  const test::TempDir dir;
  const fs::path path = dir / "f";
  const uint64_t block = checkpoint::kHashBlockBytes;
  write_file_atomic(path, std::string(2 * block + 100, 'x'));
  const LocalFile file(path, checkpoint::hash_file(path));
  std::vector<std::byte> part(10);
  EXPECT_NO_THROW(file.read(block + 7, part));
  EXPECT_EQ(part, std::vector<std::byte>(10, std::byte{'x'}));
  flip(path, block + 9);
  EXPECT_EQ(error_of([&] { file.read(block + 7, part); }).kind(), ErrorKind::kRejected);
  EXPECT_EQ(error_of([&] { file.read(2 * block - 5, part); }).kind(), ErrorKind::kRejected)
      << "of a block's end";
  EXPECT_NO_THROW(file.read(2 * block + 5, part)) << "another block";
}

TEST(LocalDamage, DuringThePushIsNoticedToo) {
  const checkpoint::Manifest manifest = manifest_of(sample_files());
  const test::TempDir dir;
  put_local(dir / "model", sample_files());
  DamagingSession facility;
  bool damaged = false;
  facility.before_block = [&](uint64_t offset) {
    if (offset > 0 && !std::exchange(damaged, true))
      flip(dir / "model/model.safetensors", 8'999'999);
  };
  const auto push_to = [&] {
    push(facility, dir / "model", manifest, RemotePath("/scratch/two"), {});
  };
  const Error error = error_of(push_to);
  ASSERT_TRUE(damaged);
  EXPECT_EQ(error.kind(), ErrorKind::kRejected);
  EXPECT_NE(std::string(error.what()).find("model.safetensors is damaged"), std::string::npos);
  EXPECT_FALSE(facility.stat(RemotePath("/scratch/two/model.safetensors")));
}

TEST(LocalDamage, OfASmallFileIsNoticed) {
  const checkpoint::Manifest manifest = manifest_of(sample_files());
  const test::TempDir dir;
  put_local(dir / "model", sample_files());
  flip(dir / "model/config.json", 1);
  test::FakeSession facility;
  const auto push_to = [&] {
    push(facility, dir / "model", manifest, RemotePath("/scratch/one"), {});
  };
  EXPECT_EQ(error_of(push_to).kind(), ErrorKind::kRejected);
  EXPECT_FALSE(facility.stat(RemotePath("/scratch/one/manifest.json")));
}

// An upload over several channels divides a file at any place.
TEST(LocalFile, ReadsAnyPartOfTheFile) {
  const test::TempDir dir;
  const fs::path path = dir / "f";
  const uint64_t block = checkpoint::kHashBlockBytes;
  const std::string bytes = noise(2 * block + 100, 1);
  write_file_atomic(path, bytes);
  const LocalFile file(path, checkpoint::hash_file(path));
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{
           {7, 10}, {block - 5, block + 20}, {2 * block + 5, 95}}) {
    std::string part(size, '\0');
    file.read(offset, std::as_writable_bytes(std::span(part)));
    EXPECT_TRUE(part == bytes.substr(offset, size)) << offset;
  }
}

TEST(LocalDamage, APushWithoutBlockHashesHashesTheFileFirst) {
  checkpoint::Manifest manifest = manifest_of(sample_files());
  for (checkpoint::ManifestFile& file : manifest.files) file.block_xxh3.clear();
  const test::TempDir dir;
  put_local(dir / "model", sample_files());
  test::FakeSession facility;
  push(facility, dir / "model", manifest, RemotePath("/scratch/one"), {});
  flip(dir / "model/model.safetensors", 7);
  const auto push_to = [&] {
    push(facility, dir / "model", manifest, RemotePath("/scratch/two"), {});
  };
  EXPECT_EQ(error_of(push_to).kind(), ErrorKind::kRejected);
}

}  // namespace
}  // namespace xffl::transfer
