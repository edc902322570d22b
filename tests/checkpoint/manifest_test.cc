#include "xffl/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "files.h"
#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "xffl/base/sha256.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// printf '' | sha256sum; printf abc | sha256sum
constexpr const char* kEmptySha256 =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kAbcSha256 =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

std::string file_json(const std::string& name, const std::string& size = "3",
                      const std::string& sha256 = kAbcSha256) {
  return R"({"name":")" + name + R"(","size_bytes":)" + size + R"(,"sha256":")" + sha256 + "\"}";
}

Thrown parsing(const std::string& files, const std::string& version = "1") {
  return thrown_by([&] {
    parse_manifest(R"({"version":)" + version + R"(,"files":)" + files + "}",
                   "manifest.json of brno");
  });
}

std::string error_of(const std::string& files) {
  const Thrown thrown = parsing(files);
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(thrown.message, HasSubstr("manifest.json of brno"));
  return thrown.message;
}

TEST(Manifest, HoldsNamesSizesAndHashes) {
  test::TempDir dir;
  write_text(dir / "b.txt", "abc");
  write_text(dir / "a.txt", "");
  write_text(dir / "manifest.json", "stale");
  const Manifest manifest = make_manifest(dir.path());
  ASSERT_EQ(manifest.files.size(), 2u);
  EXPECT_EQ(manifest.files[0], (ManifestFile{"a.txt", 0, kEmptySha256}));
  EXPECT_EQ(manifest.files[1], (ManifestFile{"b.txt", 3, kAbcSha256}));
  EXPECT_EQ(manifest.find("b.txt"), &manifest.files[1]);
  EXPECT_EQ(manifest.find("b"), nullptr);
  EXPECT_EQ(manifest.total_bytes(), 3u);
  EXPECT_EQ(manifest.root_sha256(),
            sha256_hex(std::string(kEmptySha256) + "  0  a.txt\n" + kAbcSha256 + "  3  b.txt\n"));
}

TEST(Manifest, CountsTheBytesOfFilesBeyondFourGigabytes) {
  const Manifest manifest{{{"a", uint64_t{5} << 30, kAbcSha256}, {"b", 3, kAbcSha256}}};
  EXPECT_EQ(manifest.total_bytes(), (uint64_t{5} << 30) + 3);
}

TEST(Manifest, TextRoundTrips) {
  test::TempDir dir;
  write_text(dir / "x", "abc");
  const Manifest manifest = write_manifest(dir.path());
  EXPECT_EQ(read_manifest(dir.path()), manifest);
  EXPECT_EQ(format_manifest(manifest),
            "{\n  \"version\": 1,\n  \"files\": [\n    {\n      \"name\": \"x\",\n      "
            "\"size_bytes\": 3,\n"
            "      \"sha256\": \"" +
                std::string(kAbcSha256) + "\"\n    }\n  ]\n}\n");
  EXPECT_EQ(write_manifest(dir.path()), manifest);  // without manifest.json itself
  EXPECT_EQ(parse_manifest(R"({"version":1,"files":[]})", "x").files.size(), 0u);
}

TEST(Manifest, HoldsThePrefixHashesOfAFileOfSeveralChunks) {
  test::TempDir dir;
  const std::string text = std::string(4096, 'a') + std::string(4096, 'b') + "c";
  write_text(dir / "exact", text.substr(0, 8192));
  write_text(dir / "one", text.substr(0, 4096));
  write_text(dir / "three", text);
  const Manifest manifest = make_manifest(dir.path(), 4096);
  using Digests = std::vector<std::string>;
  EXPECT_EQ(manifest.files.at(0).prefix_sha256, Digests{sha256_hex(text.substr(0, 4096))});
  EXPECT_EQ(manifest.files.at(1).prefix_sha256, Digests{});
  EXPECT_EQ(manifest.files.at(2).prefix_sha256,
            (Digests{sha256_hex(text.substr(0, 4096)), sha256_hex(text.substr(0, 8192))}));
  EXPECT_EQ(manifest.files.at(2).sha256, sha256_hex(text));

  const Manifest read = parse_manifest(format_manifest(manifest), "x");
  EXPECT_EQ(read.chunk_bytes, 4096u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(read.files.at(i).prefix_sha256, manifest.files[i].prefix_sha256);
  EXPECT_EQ(read.root_sha256(), make_manifest(dir.path()).root_sha256())
      << "the root hash depends on the chunks";
  EXPECT_THAT(format_manifest(manifest), HasSubstr("\"version\": 2"));
  EXPECT_THAT(format_manifest(make_manifest(dir.path())), HasSubstr("\"version\": 1"));
}

TEST(Manifest, KnownFilesAreNotReadAgain) {
  test::TempDir dir;
  for (const char* name : {"a", "b", "c"}) write_text(dir / name, "abc");
  const ManifestFile known{"b", 3, kEmptySha256};  // a wrong hash: reading the file would show it
  const Manifest manifest = make_manifest(dir.path(), kChunkBytes, {known});
  ASSERT_EQ(manifest.files.size(), 3u);
  EXPECT_EQ(manifest.files[1], known);
  EXPECT_EQ(manifest.files[2], (ManifestFile{"c", 3, kAbcSha256}));

  const auto error_of = [&](const ManifestFile& file) {
    const Thrown thrown = thrown_by([&] { make_manifest(dir.path(), kChunkBytes, {file}); });
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    return thrown.message;
  };
  EXPECT_THAT(error_of({"d", 3, kAbcSha256}), HasSubstr("'d' is missing"));
  EXPECT_THAT(error_of({"b", 4, kAbcSha256}), HasSubstr("expected 4 bytes, found 3"));
}

TEST(Manifest, HashesManyFilesInParallel) {
  test::TempDir dir;
  for (int i = 0; i < 50; ++i) write_text(dir / std::to_string(i), std::string(i * 1000, 'x'));
  const Manifest manifest = make_manifest(dir.path());
  EXPECT_EQ(manifest.total_bytes(), 50u * 49 / 2 * 1000);
  for (const ManifestFile& file : manifest.files)
    EXPECT_EQ(file.sha256, sha256_hex(std::string(file.size_bytes, 'x')));
  EXPECT_NO_THROW(verify_folder(dir.path(), manifest));
}

TEST(HostileManifest, RejectsWrongChunks) {
  const auto error_of = [](const std::string& head, const std::string& prefixes) {
    std::string file = file_json("a", "8193");
    file.insert(file.size() - 1, prefixes);
    const Thrown thrown =
        thrown_by([&] { parse_manifest("{" + head + R"(,"files":[)" + file + "]}", "x"); });
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << thrown.message;
    return thrown.message;
  };
  const std::string v2 = R"("version":2,"chunk_bytes":4096)";
  const std::string digest = '"' + std::string(kAbcSha256) + '"';
  for (const std::string& list : {std::string(), digest, digest + "," + digest + "," + digest})
    EXPECT_THAT(error_of(v2, R"(,"prefix_sha256":[)" + list + "]"),
                HasSubstr("should have 2 items, one for each chunk of 4096 bytes but the last"));
  EXPECT_THAT(error_of(v2, R"(,"prefix_sha256":["x",)" + digest + "]"), HasSubstr("hexadecimal"));
  EXPECT_THAT(error_of(v2, R"(,"prefix_sha256":[1,2])"), HasSubstr("strings only"));
  EXPECT_THAT(error_of(v2, R"(,"prefix_sha256":null)"), HasSubstr("prefix_sha256"));
  EXPECT_THAT(error_of(R"("version":2)", ""), HasSubstr("'chunk_bytes' is missing"));
  for (const char* size : {"0", "-1", "1", "4095", "67108865", "1e9"})
    EXPECT_THAT(error_of(R"("version":2,"chunk_bytes":)" + std::string(size), ""),
                HasSubstr("chunk_bytes"));
}

TEST(HostileManifest, RejectsUnsafeNames) {
  for (const char* name : {"", ".", "..", ".hidden", "a/b", "/etc/passwd", "../x", "a b",
                           "a\\u0000", "\\u00e9", "manifest.json"}) {
    EXPECT_THAT(error_of("[" + file_json(name) + "]"),
                HasSubstr("files[0]: 'name' should be 1 to 200 characters"))
        << name;
  }
  EXPECT_THAT(error_of("[" + file_json(std::string(4096, 'x')) + "]"), HasSubstr("'name'"));
}

TEST(HostileManifest, RejectsUnsortedAndDuplicateNames) {
  EXPECT_THAT(error_of("[" + file_json("b") + "," + file_json("a") + "]"),
              HasSubstr("names should be sorted and unique"));
  EXPECT_THAT(error_of("[" + file_json("a") + "," + file_json("a") + "]"),
              HasSubstr("sorted and unique"));
}

TEST(HostileManifest, RejectsInvalidSizesAndHashes) {
  for (const char* size :
       {"-1", "1125899906842624", "18446744073709551615", "1e3", "\"3\"", "null"}) {
    EXPECT_THAT(error_of("[" + file_json("a", size) + "]"), HasSubstr("files[0]: 'size_bytes'"))
        << size;
  }
  for (const std::string& sha256 :
       {std::string(), std::string(63, 'a'), std::string(64, 'A'), std::string(64, 'g')}) {
    EXPECT_THAT(error_of("[" + file_json("a", "3", sha256) + "]"), HasSubstr("files[0]: 'sha256'"));
  }
}

TEST(HostileManifest, IgnoresKeysOfALaterRelease) {
  std::string file = file_json("a", "3");
  const std::string plain = R"({"version":1,"files":[)" + file + "]}";
  file.insert(file.size() - 1, R"(,"mode":511,"prefix_sha256":[])");
  const Manifest later =
      parse_manifest(R"({"version":1,"signer":{"a":1},"files":[)" + file + "]}", "x");
  EXPECT_EQ(later.root_sha256(), parse_manifest(plain, "x").root_sha256());
}

TEST(HostileManifest, RejectsAWrongStructure) {
  EXPECT_THAT(error_of("{}"), HasSubstr("'files' should be a list"));
  EXPECT_THAT(error_of("[5]"), HasSubstr("files[0]"));
  EXPECT_THAT(error_of(R"([{"name":"a","size_bytes":3}])"), HasSubstr("'sha256' is missing"));
  EXPECT_EQ(parsing("[]", "2").kind, ErrorKind::kCorrupt);
  EXPECT_THAT(parsing("[]", "3").message, HasSubstr("should be format version 1 to 2, found 3"));
  std::string many;
  for (int i = 0; i <= 4096; ++i)
    many += (i > 0 ? "," : "") + file_json("f" + std::to_string(10'000 + i));
  EXPECT_THAT(error_of("[" + many + "]"), HasSubstr("at most 4096 items, found 4097"));
}

TEST(MakeManifest, RejectsSubfoldersLinksPipesAndUnsafeNames) {
  const auto error_of = [](const auto& prepare) {
    test::TempDir dir;
    write_text(dir / "ok", "abc");
    prepare(dir.path());
    const Thrown thrown = thrown_by([&] { make_manifest(dir.path()); });
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    return thrown.message;
  };
  EXPECT_THAT(error_of([](const fs::path& dir) { fs::create_directory(dir / "sub"); }),
              HasSubstr("sub"));
  EXPECT_THAT(error_of([](const fs::path& dir) { fs::create_symlink("ok", dir / "link"); }),
              HasSubstr("link"));
  EXPECT_THAT(error_of([](const fs::path& dir) { mkfifo((dir / "pipe").c_str(), 0600); }),
              HasSubstr("pipe"));
  EXPECT_THAT(error_of([](const fs::path& dir) { write_text(dir / ".hidden", ""); }),
              HasSubstr(".hidden"));
  EXPECT_THAT(error_of([](const fs::path& dir) { write_text(dir / "a b", ""); }), HasSubstr("a b"));
}

TEST(MakeManifest, ThrowsNotFoundForAMissingFolder) {
  EXPECT_EQ(thrown_by([] { make_manifest("/nonexistent/folder"); }).kind, ErrorKind::kNotFound);
  EXPECT_EQ(thrown_by([] { read_manifest("/nonexistent/folder"); }).kind, ErrorKind::kNotFound);
}

// A file of /proc has no size and some content. The filter of system calls reads no byte of the
// other file.
TEST(HashFile, RejectsAFileThatGrowsOrShrinksMeanwhile) {
  const Thrown grown = thrown_by([] { hash_file("/proc/self/status"); });
  EXPECT_EQ(grown.kind, ErrorKind::kRejected);
  EXPECT_THAT(grown.message, HasSubstr("changed while it was read"));
  const test::TempDir dir;
  write_text(dir / "f", "abc");
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_pread64, 0)) return 77;
    const Thrown shrunk = thrown_by([&] { hash_file(dir / "f"); });
    return shrunk.message.find("changed while it was read") != std::string::npos ? 0 : 1;
  });
  if (code == 77) GTEST_SKIP() << "this system does not allow seccomp filters";
  EXPECT_EQ(code, 0);
}

class VerifyFolder : public testing::Test {
 protected:
  VerifyFolder() {
    write_text(dir_ / "a", "abc");
    write_text(dir_ / "b", "");
    manifest_ = write_manifest(dir_.path());
  }

  std::string error_of() {
    const Thrown thrown = thrown_by([&] { verify_folder(dir_.path(), manifest_); });
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    return thrown.message;
  }

  test::TempDir dir_;
  Manifest manifest_;
};

TEST_F(VerifyFolder, AcceptsExactlyTheManifestsFiles) {
  EXPECT_NO_THROW(verify_folder(dir_.path(), manifest_));
  fs::remove(dir_ / "manifest.json");
  EXPECT_NO_THROW(verify_folder(dir_.path(), manifest_));
}

TEST_F(VerifyFolder, RejectsAChangedByte) {
  write_text(dir_ / "a", "abb");
  EXPECT_THAT(error_of(), HasSubstr("expected SHA-256 " + std::string(kAbcSha256)));
}

TEST_F(VerifyFolder, RejectsAChangedSize) {
  write_text(dir_ / "a", "abcd");
  EXPECT_THAT(error_of(), HasSubstr("expected 3 bytes, found 4"));
}

TEST_F(VerifyFolder, RejectsMissingAndExtraFiles) {
  fs::remove(dir_ / "b");
  EXPECT_THAT(error_of(), HasSubstr("'b' is missing"));
  write_text(dir_ / "b", "");
  write_text(dir_ / "c", "");
  EXPECT_THAT(error_of(), HasSubstr("'c' is not in the manifest"));
}

// A frozen coordinator continued its push after another one had completed the folder.
TEST_F(VerifyFolder, AcceptsUnfinishedFilesOfAPush) {
  write_text(dir_ / ".a.part", "ab");
  write_text(dir_ / ".manifest.json.part", "{");
  EXPECT_NO_THROW(verify_folder(dir_.path(), manifest_));
  write_text(dir_ / ".c.part", "");
  EXPECT_THAT(error_of(), HasSubstr("'.c.part' is not in the manifest"));
}

TEST_F(VerifyFolder, RejectsASymbolicLink) {
  test::TempDir outside;
  fs::rename(dir_ / "a", outside / "a");
  fs::create_symlink(outside / "a", dir_ / "a");
  EXPECT_THAT(error_of(), HasSubstr("expected a regular file"));
}

TEST_F(VerifyFolder, RejectsAPipeWithoutBlocking) {
  fs::remove(dir_ / "a");
  mkfifo((dir_ / "a").c_str(), 0600);
  EXPECT_THAT(error_of(), HasSubstr("expected a regular file"));
}

TEST_F(VerifyFolder, ReadManifestRejectsAPipe) {
  fs::remove(dir_ / "manifest.json");
  mkfifo((dir_ / "manifest.json").c_str(), 0600);
  EXPECT_THAT(thrown_by([&] { read_manifest(dir_.path()); }).message, HasSubstr("regular file"));
}

TEST_F(VerifyFolder, RejectsAFolderInPlaceOfAFile) {
  fs::remove(dir_ / "a");
  fs::create_directory(dir_ / "a");
  EXPECT_THAT(error_of(), HasSubstr("expected a regular file"));
}

}  // namespace
}  // namespace xffl::checkpoint
