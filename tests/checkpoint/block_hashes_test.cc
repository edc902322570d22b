#include "xffl/checkpoint/block_hashes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "support/failing_call.h"
#include "support/kernel_reads_ahead.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "support/unchecked_writer.h"
#include "xffl/base/error.h"
#include "xffl/base/fast_hash.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/model_folder.h"

namespace {

std::atomic<bool> next_read_fails = false;  // the disk answers again afterwards

}  // namespace

extern "C" ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  if (!next_read_fails.exchange(false)) return ::syscall(SYS_pread64, fd, to, size, offset);
  errno = EIO;
  return -1;
}

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::kind_of;
using test::Thrown;
using test::thrown_by;
using test::write_unchecked;
using testing::HasSubstr;

std::string some_bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

void flip(const fs::path& path, size_t at) {
  std::string bytes = read_file(path, 1 << 30);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 4);
  write_file_atomic(path, bytes);
}

// Published test vectors of XXH3 (64 bits, seed 0).
TEST(FastHash, IsXxh3) {
  EXPECT_EQ(fast_hash({}), 0x2d06800538d394c2u);
  const std::string text = some_bytes(1'000'000);
  const auto bytes = std::as_bytes(std::span(text));
  FastHash pieces;
  for (size_t at = 0; at < bytes.size(); at += 777)
    pieces.update(bytes.subspan(at, std::min<size_t>(777, bytes.size() - at)));
  EXPECT_EQ(pieces.value(), fast_hash(bytes));
}

TEST(BlockHash, DoesNotDependOnThePieces) {
  const std::string text = some_bytes(3 * kHashBlockBytes + 5);
  const auto bytes = std::as_bytes(std::span(text));
  BlockHash whole;
  whole.update(bytes);
  const std::vector<uint64_t> expected = whole.finish();
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_EQ(expected[3], fast_hash(bytes.last(5)));
  for (const size_t piece : {1000ul, 262144ul, 300000ul}) {
    BlockHash hash;
    for (size_t at = 0; at < bytes.size(); at += piece)
      hash.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(hash.finish(), expected) << piece;
  }
}

TEST(BlockHash, ForgetsTheBytesAfterAMark) {
  const std::string text = some_bytes(3 * kHashBlockBytes);
  const auto bytes = std::as_bytes(std::span(text));
  for (const size_t marked : {0ul, 100ul, 262144ul, 500000ul}) {
    BlockHash hash;
    hash.update(bytes.first(marked));
    const BlockHash::Mark mark = hash.mark();
    hash.update(bytes.first(700'000 - marked));
    hash.rewind(mark);
    hash.update(bytes.subspan(marked));
    BlockHash expected;
    expected.update(bytes);
    const std::vector<uint64_t> blocks = expected.finish();
    EXPECT_EQ(blocks.size(), 3u) << "no empty block follows the last whole one";
    EXPECT_EQ(hash.finish(), blocks) << marked;
  }
}

// The float32 master of a model with 32 billion parameters. Without the file of its hashes, each
// read of the master would hash all of it.
TEST(BlockHashes, OfALargeModelAreReadBack) {
  const test::TempDir dir;
  constexpr uint64_t kSize = uint64_t{1} << 37;
  Manifest manifest{{{"model.safetensors", kSize, std::string(64, 'a')}}};
  std::vector<uint64_t>& blocks = manifest.files[0].block_xxh3;
  blocks.resize(kSize / kHashBlockBytes);
  std::iota(blocks.begin(), blocks.end(), uint64_t{1});
  write_block_hashes(dir / "m", manifest, write_unchecked);
  const std::optional<Manifest> found = read_block_hashes(dir / "m");
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->files.at(0).block_xxh3 == blocks);
}

class HashedFolder : public testing::Test {
 protected:
  HashedFolder() {
    ModelWriter writer(folder_, {{"a", Dtype::kF32, {100'000}}, {"b", Dtype::kF32, {5}}});
    const std::string bytes = some_bytes(400'000);
    writer.write(std::as_bytes(std::span(bytes)));
    writer.write(std::as_bytes(std::span(bytes)).first(20));
    const auto files = writer.finish();
    write_file_atomic(folder_ / "config.json", R"({"model_type": "llama"})");
    root_ = write_manifest(folder_, files).root_sha256();
  }
  const test::TempDir dir_;
  const fs::path folder_ = dir_ / "model";
  std::string root_;
};

TEST_F(HashedFolder, HashesOfTheWriterAreThoseOfTheFiles) {
  const Manifest read = make_manifest(folder_);
  EXPECT_EQ(read.files.at(1).block_xxh3.size(), 2u);
  const Hashes hashes = load_hashes(folder_, root_, write_unchecked);
  EXPECT_EQ(*hashes, read);
  EXPECT_EQ(hashes->files.at(1).block_xxh3, read.files.at(1).block_xxh3);
  EXPECT_TRUE(fs::exists(block_hashes_path(folder_)));
}

TEST_F(HashedFolder, AFlippedByteOfTheSidecarMakesItUnused) {
  load_hashes(folder_, root_, write_unchecked);
  const std::string good = read_file(block_hashes_path(folder_), 1 << 20);
  for (size_t at = 0; at < good.size(); ++at) {
    flip(block_hashes_path(folder_), at);
    EXPECT_FALSE(read_block_hashes(folder_)) << at;
    write_file_atomic(block_hashes_path(folder_), good);
  }
  flip(block_hashes_path(folder_), 100);
  EXPECT_EQ(load_hashes(folder_, root_, write_unchecked)->root_sha256(), root_);
  EXPECT_EQ(read_file(block_hashes_path(folder_), 1 << 20), good) << "written again";
}

// A read of the sidecar fails, as for a bad sector.
TEST_F(HashedFolder, AnUnreadableSidecarIsNotUsed) {
  load_hashes(folder_, root_, write_unchecked);
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_read, EIO)) return 77;
    std::optional<Manifest> found;
    const Thrown thrown = thrown_by([&] { found = read_block_hashes(folder_); });
    return thrown.message == "no error was thrown" && !found ? 0 : 1;
  });
  if (code == 77) GTEST_SKIP() << "this system does not allow seccomp filters";
  EXPECT_EQ(code, 0);
}

// A folder may be replaced, and its sidecar stay.
TEST_F(HashedFolder, ASidecarOfOtherFilesIsNotUsed) {
  load_hashes(folder_, root_, write_unchecked);
  flip(folder_ / "model.safetensors", fs::file_size(folder_ / "model.safetensors") - 1);
  fs::remove(folder_ / kManifestName);
  const Manifest other = write_manifest(folder_);
  ASSERT_NE(other.root_sha256(), root_);
  EXPECT_EQ(load_hashes(folder_, other.root_sha256(), write_unchecked)->root_sha256(),
            other.root_sha256());
  EXPECT_EQ(thrown_by([&] { load_hashes(folder_, root_, write_unchecked); }).kind,
            ErrorKind::kCorrupt);
}

TEST_F(HashedFolder, WithoutASidecarTheRootHashDecides) {
  flip(folder_ / "model.safetensors", 300'000);
  const Thrown thrown = thrown_by([&] { load_hashes(folder_, root_, write_unchecked); });
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(thrown.message, HasSubstr("model.safetensors is damaged"));
  EXPECT_FALSE(fs::exists(block_hashes_path(folder_)));
  fs::create_directory(folder_ / "folder");
  EXPECT_EQ(kind_of([&] { load_hashes(folder_, root_, write_unchecked); }), ErrorKind::kCorrupt);
  fs::remove(folder_ / "folder");
  fs::remove(folder_ / "config.json");
  EXPECT_THAT(thrown_by([&] { load_hashes(folder_, root_, write_unchecked); }).message,
              HasSubstr("config.json is damaged"));
}

TEST_F(HashedFolder, AFileOfManyBlocksIsCheckedByBlock) {
  const fs::path path = folder_ / "tokenizer.json";
  write_file_atomic(path, some_bytes(3 * (1 << 20) + 5));
  const Manifest manifest = make_manifest(folder_);
  const ManifestFile& file = *manifest.find("tokenizer.json");
  EXPECT_NO_THROW(check_blocks(path, file));
  for (const size_t at : {size_t{0}, size_t{1 << 20}, size_t{3 << 20}}) {
    flip(path, at);
    EXPECT_EQ(kind_of([&] { check_blocks(path, file); }), ErrorKind::kCorrupt) << at;
    flip(path, at);
  }
  write_file_atomic(path, read_file(path, 1 << 30) + "x");
  EXPECT_EQ(kind_of([&] { check_blocks(path, file); }), ErrorKind::kCorrupt) << "a byte more";
}

TEST_F(HashedFolder, ADamagedManifestIsWrittenAgain) {
  const std::string good = read_file(folder_ / kManifestName, 1 << 20);
  flip(folder_ / kManifestName, 40);
  rehash(folder_, root_, write_unchecked);
  EXPECT_EQ(read_file(folder_ / kManifestName, 1 << 20), good);
}

TEST_F(HashedFolder, AModelFolderVerifiesTheBytesThatAreRead) {
  const Hashes hashes = load_hashes(folder_, root_, write_unchecked);
  const auto read = [&] {
    const ModelFolder model(folder_, hashes);
    for (const char* name : {"a", "b"}) model.verify(model.data(name));
    model.verify_all();
  };
  EXPECT_NO_THROW(read());
  const size_t size = fs::file_size(folder_ / "model.safetensors");
  std::vector<std::pair<std::string, size_t>> places{{"config.json", 3}};
  for (const size_t at : {0ul, 3ul, 20ul, 150ul, 262143ul, 262144ul, size - 1})
    places.emplace_back("model.safetensors", at);
  for (const auto& [file, at] : places) {
    flip(folder_ / file, at);
    const Thrown thrown = thrown_by(read);
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << file << at;
    EXPECT_THAT(thrown.message, HasSubstr((folder_ / file).string() + " is damaged")) << at;
    flip(folder_ / file, at);
  }
  EXPECT_NO_THROW(read());
  fs::resize_file(folder_ / "model.safetensors", size - 1);
  EXPECT_EQ(thrown_by(read).kind, ErrorKind::kCorrupt);
  fs::remove(folder_ / "model.safetensors");
  EXPECT_THAT(thrown_by(read).message, HasSubstr("model.safetensors is damaged"));
}

// A filter of system calls fails all these reads in a child.
TEST_F(HashedFolder, AFileThatTheDiskCannotReadIsDamaged) {
  const Manifest manifest = make_manifest(folder_);
  const fs::path path = folder_ / "config.json";
  const auto is_damage = [&](unsigned error, const auto& body) {
    return test::in_child([&] {
      if (!test::fail_calls(SYS_pread64, error)) return 77;
      const Thrown thrown = thrown_by(body);
      const bool names = thrown.message.find("cannot read " + path.string()) != std::string::npos;
      return names && thrown.kind == ErrorKind::kCorrupt ? 1 : 0;
    });
  };
  const auto hash_again = [&] { rehash(folder_, root_, write_unchecked); };
  const auto check = [&] { check_blocks(path, *manifest.find("config.json")); };
  if (is_damage(EIO, check) == 77) GTEST_SKIP() << "this system does not allow seccomp filters";
  EXPECT_EQ(is_damage(EIO, check), 1);
  EXPECT_EQ(is_damage(EIO, hash_again), 1);
  EXPECT_EQ(is_damage(EACCES, check), 0) << "no evidence of damage";
  EXPECT_EQ(is_damage(EACCES, hash_again), 0);
}

// Opening the folder has verified config.json.
TEST_F(HashedFolder, DamageOfATextAfterTheOpeningIsFound) {
  const Hashes hashes = load_hashes(folder_, root_, write_unchecked);
  const ModelFolder model(folder_, hashes);
  const fs::path path = folder_ / "config.json";
  const std::string good = model.read_text("config.json", 100);
  const auto expect_damage = [&](const std::string& content) {
    write_file_atomic(path, content);
    EXPECT_EQ(kind_of([&] { model.read_text("config.json", 100); }), ErrorKind::kCorrupt)
        << content;
    EXPECT_EQ(kind_of([&] { model.verify_all(); }), ErrorKind::kCorrupt) << content;
  };
  std::string changed = good;
  changed.at(3) = static_cast<char>(changed.at(3) ^ 4);
  expect_damage(changed);
  expect_damage("");
  write_file_atomic(path, good);
  EXPECT_EQ(model.read_text("config.json", 100), good);
  EXPECT_NO_THROW(model.verify_all());
}

// A read of the text fails, as for a bad sector.
TEST_F(HashedFolder, ATextThatTheDiskCannotReadIsDamaged) {
  const Hashes hashes = load_hashes(folder_, root_, write_unchecked);
  const ModelFolder model(folder_, hashes);
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_read, EIO)) return 77;
    const Thrown thrown = thrown_by([&] { model.read_text("config.json", 100); });
    return thrown.kind == ErrorKind::kCorrupt ? 0 : 1;
  });
  if (code == 77) GTEST_SKIP() << "this system does not allow seccomp filters";
  EXPECT_EQ(code, 0);
}

TEST_F(HashedFolder, AReadErrorThatPassesIsNoDamage) {
  next_read_fails = true;
  const Thrown thrown = thrown_by([&] { rehash(folder_, root_, write_unchecked); });
  EXPECT_FALSE(next_read_fails);
  EXPECT_EQ(thrown.message, "no error was thrown");
}

// An access to the bytes would end the process by SIGBUS.
TEST_F(HashedFolder, AMappedFileThatIsCutIsDamaged) {
  const Hashes hashes = load_hashes(folder_, root_, write_unchecked);
  const fs::path path = folder_ / "model.safetensors";
  const ModelFolder model(folder_, hashes);  // verifies the first of two blocks
  const MappedFile file(path);
  if (!test::kernel_reads_ahead(file)) GTEST_SKIP() << "this kernel does not read ahead";
  fs::resize_file(path, 1000);
  const Thrown thrown = thrown_by([&] { model.verify(model.data("a")); });
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(thrown.message, HasSubstr(path.string() + " is damaged on this machine"));
}

// Opening verifies the first of the two blocks that hold tensor a, for the header's sake.
TEST_F(HashedFolder, ATensorOfSeveralBlocksIsVerifiedToItsEnd) {
  const Hashes hashes = load_hashes(folder_, root_, write_unchecked);
  flip(folder_ / "model.safetensors", 300'000);
  const ModelFolder model(folder_, hashes);
  EXPECT_EQ(kind_of([&] { model.verify(model.data("a")); }), ErrorKind::kCorrupt);
}

// The block hashes do not cover such a file, so its damage would stay unseen.
TEST_F(HashedFolder, AFileThatWasNotWrittenWithTheFolderIsRefused) {
  const Hashes hashes = load_hashes(folder_, root_, write_unchecked);
  write_file_atomic(folder_ / "vocab.json", "{}");
  const ModelFolder model(folder_, hashes);
  const Thrown text = thrown_by([&] { model.read_text("vocab.json", 100); });
  EXPECT_EQ(text.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(text.message, HasSubstr("vocab.json: was not written with this folder"));
  const auto other = std::make_shared<Manifest>(*hashes);
  std::erase_if(other->files,
                [](const ManifestFile& file) { return file.name == "model.safetensors"; });
  const Thrown tensors = thrown_by([&] { ModelFolder(folder_, Hashes(other)); });
  EXPECT_EQ(tensors.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(tensors.message, HasSubstr("model.safetensors: was not written with this folder"));
}

// Each file has two blocks, and opening verifies the first.
TEST(HashedFiles, AllFilesOfAModelAreVerified) {
  const test::TempDir dir;
  ModelWriter writer(dir / "m", {{"a", Dtype::kF32, {100'000}}, {"b", Dtype::kF32, {100'000}}},
                     /*max_shard_bytes=*/400'000);
  const std::string bytes = some_bytes(400'000);
  for (int i = 0; i < 2; ++i) writer.write(std::as_bytes(std::span(bytes)));
  const auto files = writer.finish();
  const Manifest manifest = write_manifest(dir / "m", files);
  const Hashes hashes = load_hashes(dir / "m", manifest.root_sha256(), write_unchecked);
  flip(dir / "m/model-00002-of-00002.safetensors", 300'000);
  const ModelFolder model(dir / "m", hashes), other(dir / "m", hashes);
  EXPECT_NO_THROW(model.verify(model.data("a")));
  EXPECT_EQ(kind_of([&] { model.verify(model.data("b")); }), ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of([&] { other.verify_all(); }), ErrorKind::kCorrupt);
}

TEST(HashedFile, VerifiesAHeaderOfSeveralBlocksAtItsOpening) {
  const test::TempDir dir;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 2000; ++i)
    specs.push_back({std::string(150, 'a') + std::to_string(i), Dtype::kU8, {1}});
  SafetensorsWriter writer(dir / "a", specs);
  writer.write(std::vector<std::byte>(specs.size()));
  const ManifestFile file = writer.finish();
  EXPECT_EQ(SafetensorsFile(dir / "a", file).tensors().size(), specs.size());
  flip(dir / "a", kHashBlockBytes);  // the first byte of the header's second block
  const Thrown thrown = thrown_by([&] { SafetensorsFile(dir / "a", file); });
  EXPECT_THAT(thrown.message, HasSubstr((dir / "a").string() + " is damaged"));
}

}  // namespace
}  // namespace xffl::checkpoint
