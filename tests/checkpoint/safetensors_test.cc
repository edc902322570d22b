#include "xffl/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "files.h"
#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::vector<TensorSpec> kSpecs{{"model.embed_tokens.weight", Dtype::kF32, {3, 2}},
                                     {"scalar", Dtype::kF32, {}},
                                     {"empty", Dtype::kBF16, {0, 7}},
                                     {"flags", Dtype::kU8, {3}},
                                     {"last", Dtype::kF32, {1}}};

std::vector<std::byte> make_data() {
  std::vector<std::byte> data = bytes_of({1, 2, 3, 4, 5, 6, 42});
  for (const int flag : {7, 8, 9}) data.push_back(static_cast<std::byte>(flag));
  for (const std::byte byte : bytes_of({-1.5f})) data.push_back(byte);
  return data;
}

TEST(SafetensorsWriter, RoundTripsWithScalarsEmptyAndUnalignedTensors) {
  test::TempDir dir;
  const std::vector<std::byte> data = make_data();
  SafetensorsWriter writer(dir / "a.safetensors", kSpecs,
                           {{"format", "pt"}, {"note", "caff\u00e8 \"x\""}});
  writer.write(data);
  const ManifestFile file_hash = writer.finish();
  EXPECT_EQ(file_hash.name, "a.safetensors");
  EXPECT_EQ(file_hash.size_bytes, fs::file_size(dir / "a.safetensors"));
  EXPECT_EQ(file_hash.sha256, sha256_file(dir / "a.safetensors"));

  const SafetensorsFile file(dir / "a.safetensors");
  EXPECT_EQ(file.tensors(), kSpecs);
  EXPECT_EQ(file.metadata().at("note"), "caff\u00e8 \"x\"");
  EXPECT_EQ(file.data("empty").size(), 0u);
  EXPECT_EQ(file.data("scalar").size(), 4u);
  EXPECT_EQ(file.spec("scalar").num_elements(), 1);
  EXPECT_TRUE(
      std::ranges::equal(file.data("model.embed_tokens.weight"), bytes_of({1, 2, 3, 4, 5, 6})));
  EXPECT_TRUE(std::ranges::equal(file.data("last"), bytes_of({-1.5f})));
  EXPECT_EQ(file.data("flags")[2], std::byte{9});
}

TEST(SafetensorsWriter, WritesTheSameBytesForAnyPieceSize) {
  test::TempDir dir;
  std::vector<TensorSpec> specs{{"big", Dtype::kU8, {3'000'017}}};
  std::vector<std::byte> data(3'000'017);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 % 251);
  std::set<std::string> hashes;
  for (const size_t piece : {size_t{1000}, size_t{262'144}, size_t{300'000}, data.size()}) {
    SafetensorsWriter writer(dir / "a.safetensors", specs);
    for (size_t at = 0; at < data.size(); at += piece) {
      writer.write(std::span(data).subspan(at, std::min(piece, data.size() - at)));
    }
    hashes.insert(writer.finish().sha256);
    EXPECT_EQ(*hashes.begin(), sha256_file(dir / "a.safetensors"));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

// Expects a kIo error with the file's name when no file may exceed `limit` bytes, and no rest.
void expect_full_disk(rlim_t limit, int64_t bytes, size_t piece_bytes) {
  test::TempDir dir;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto on_signal = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit full { limit, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  const Thrown thrown = thrown_by([&] {
    SafetensorsWriter writer(dir / "a", {{"x", Dtype::kU8, {bytes}}});
    const std::vector<std::byte> piece(piece_bytes);
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(piece_bytes)) writer.write(piece);
    writer.finish();
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, on_signal);
  EXPECT_EQ(thrown.kind, ErrorKind::kIo);
  EXPECT_THAT(thrown.message, HasSubstr("a.tmp"));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

// A later call reports the background thread's error; the temp file is removed.
TEST(SafetensorsWriter, AFullDiskIsAnErrorThatNamesTheFile) {
  expect_full_disk(1u << 21, 64 << 20, 1u << 20);
}

// The background thread meets the full disk after the caller's last write().
TEST(SafetensorsWriter, AFullDiskAtTheLastBytesIsAnError) {
  expect_full_disk(600'000, 700'000, 700'000);
}

// A power loss could otherwise leave the final name without the bytes.
TEST(SafetensorsWriter, SyncsTheWholeFile) {
  test::TempDir dir;
  SafetensorsWriter writer(dir / "a", {{"x", Dtype::kU8, {1 << 20}}});
  writer.write(std::vector<std::byte>(1 << 20));
  test::synced_sizes.clear();
  writer.finish();
  EXPECT_TRUE(test::is_synced(dir / "a"));
}

TEST(SafetensorsWriter, PadsTheHeaderToEightBytes) {
  test::TempDir dir;
  for (const char* name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"}) {
    SafetensorsWriter writer(dir / "a", {{name, Dtype::kF32, {1}}}, {});
    writer.write(bytes_of({1}));
    writer.finish();
    EXPECT_EQ(fs::file_size(dir / "a") % 8, 4u);
    EXPECT_EQ(SafetensorsFile(dir / "a").tensors().front().name, name);
  }
}

TEST(SafetensorsWriter, LeavesOnlyATempFileBeforeFinishAndNoFileAfterDestruction) {
  test::TempDir dir;
  {
    SafetensorsWriter writer(dir / "a", {{"x", Dtype::kF32, {2}}});
    writer.write(bytes_of({1}));
    EXPECT_FALSE(fs::exists(dir / "a"));
    EXPECT_TRUE(fs::exists(dir / "a.tmp"));
    const Thrown thrown = thrown_by([&] { writer.finish(); });
    EXPECT_THAT(thrown.message, HasSubstr("expected 8 bytes of data, got 4"));
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(SafetensorsWriter, RejectsMoreDataThanTheTensorsHave) {
  test::TempDir dir;
  SafetensorsWriter writer(dir / "a", {{"x", Dtype::kF32, {2}}});
  EXPECT_EQ(thrown_by([&] { writer.write(bytes_of({1, 2, 3})); }).kind, ErrorKind::kInternal);
}

TEST(SafetensorsWriter, RejectsTensorsThatTheReaderRejects) {
  test::TempDir dir;
  const auto message = [&](std::vector<TensorSpec> specs) {
    const Thrown thrown = thrown_by([&] { SafetensorsWriter(dir / "a", std::move(specs)); });
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    return thrown.message;
  };
  EXPECT_THAT(message({{"a/b", Dtype::kF32, {1}}}), HasSubstr("'a/b'"));
  EXPECT_THAT(message({{"__metadata__", Dtype::kF32, {1}}}), HasSubstr("__metadata__"));
  EXPECT_THAT(message({{"a", Dtype::kF32, {1}}, {"a", Dtype::kF32, {1}}}), HasSubstr("twice"));
  EXPECT_THAT(message({{"a", Dtype::kF32, {-1}}}), HasSubstr("[-1]"));
  EXPECT_THAT(message({{"a", Dtype::kF32, {1ll << 40, 1ll << 40}}}), HasSubstr("overflows"));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(SafetensorsFile, ReadsTensorsWhoseDataIsInAnotherOrderThanTheHeader) {
  test::TempDir dir;
  std::string text = with_header(
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} )",
      0);
  write_text(dir / "a", text + "xyz");
  const SafetensorsFile file(dir / "a");
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.data("b")[1], std::byte{'z'});
  EXPECT_TRUE(file.metadata().empty());
}

// A file of a published model has up to 5 GiB. A hole stands for most of the bytes.
TEST(SafetensorsFile, ReadsAndVerifiesBytesBeyondFourGigabytes) {
  test::TempDir dir;
  constexpr uint64_t kOffset = uint64_t{1} << 32;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[4294967296],"data_offsets":[0,4294967296]},)"
      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4294967296,4294967300]}})";
  const std::vector<std::byte> value = bytes_of({1.5f});
  write_text(dir / "m", with_header(header, 0));
  fs::resize_file(dir / "m", 8 + header.size() + kOffset);
  std::ofstream(dir / "m", std::ios::binary | std::ios::app)
      .write(reinterpret_cast<const char*>(value.data()), 4);
  EXPECT_TRUE(std::ranges::equal(SafetensorsFile(dir / "m").data("b"), value));

  const MappedFile mapped(dir / "m");
  ManifestFile written{"m", mapped.bytes().size(), std::string(64, 'a')};
  written.block_xxh3.resize(kOffset / kHashBlockBytes + 1);
  written.block_xxh3.front() = fast_hash(mapped.bytes().first(kHashBlockBytes));
  written.block_xxh3.back() = fast_hash(mapped.bytes().subspan(kOffset));
  const auto verify = [&] {
    const SafetensorsFile file(dir / "m", written);
    file.verify(file.data("b"));
  };
  EXPECT_NO_THROW(verify());
  ++written.block_xxh3.back();
  EXPECT_EQ(thrown_by(verify).kind, ErrorKind::kCorrupt);
}

TEST(SafetensorsFile, ReadsAFileWithoutTensors) {
  test::TempDir dir;
  write_text(dir / "a", with_header("{}", 0));
  EXPECT_TRUE(SafetensorsFile(dir / "a").tensors().empty());
}

TEST(SafetensorsFile, ErrorNamesAMissingTensor) {
  test::TempDir dir;
  EXPECT_EQ(thrown_by([&] { SafetensorsFile file(dir / "none"); }).kind, ErrorKind::kNotFound);
  write_text(dir / "a", with_header("{}", 0));
  const SafetensorsFile file(dir / "a");
  EXPECT_FALSE(file.contains("lm_head.weight"));
  const Thrown thrown = thrown_by([&] { file.data("lm_head.weight"); });
  EXPECT_EQ(thrown.kind, ErrorKind::kNotFound);
  EXPECT_THAT(thrown.message, HasSubstr("lm_head.weight"));
}

TEST(SafetensorsFile, ReadsTheLargestHeaderQuickly) {
  test::TempDir dir;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 20'000; ++i) {
    specs.push_back(
        {"model.layers." + std::to_string(i) + ".input_layernorm.weight", Dtype::kU8, {1}});
  }
  SafetensorsWriter writer(dir / "a", specs);
  writer.write(std::vector<std::byte>(specs.size()));
  writer.finish();
  EXPECT_EQ(SafetensorsFile(dir / "a").tensors().size(), 20'000u);
  specs.push_back({"one.too.many", Dtype::kU8, {1}});
  EXPECT_THAT(thrown_by([&] { SafetensorsWriter(dir / "b", specs); }).message,
              HasSubstr("expected at most 20000 tensors, found 20001"));
}

}  // namespace
}  // namespace xffl::checkpoint
