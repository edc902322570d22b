// Far sides that lie, and how each is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "folders.h"

namespace xffl::transfer {
namespace {

using testing::HasSubstr;

// Lies about single files; honest for the rest.
class LyingSession final : public test::FakeSession {
 public:
  std::map<std::string, FileInfo> lies;
  std::string endless;  // a path whose reads always fill the buffer
  std::function<void(const RemotePath&, uint64_t)> on_read;

  std::optional<FileInfo> stat(const RemotePath& path) override {
    const auto lie = lies.find(path.str());
    return lie == lies.end() ? FakeSession::stat(path) : lie->second;
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    if (on_read) on_read(path, offset);
    if (path.str() != endless) return FakeSession::read(path, offset, out);
    std::fill(out.begin(), out.end(), std::byte{'x'});
    highest = std::max(highest, offset + out.size());
    return out.size();
  }
  uint64_t highest = 0;
};

class HostileFetch : public testing::Test {
 protected:
  Files files_ = {{"a.json", "{}"}, {"model.safetensors", noise(5'000'000, 3)}};
  LyingSession far_;
  test::TempDir dir_;
  fs::path to_ = dir_ / "update";
  const RemotePath from_{"/out"};
  const std::string model_ = "/out/model.safetensors";
  uint64_t max_bytes_ = 1u << 30;

  void SetUp() override { put_far(far_, "/out", files_); }

  Error refusal() {
    const std::string root = manifest_of(files_).root_sha256();
    const Error error = error_of([&] { fetch(far_, from_, root, max_bytes_, to_, {}); });
    EXPECT_FALSE(fs::exists(to_));
    return error;
  }
  void expect_refusal(ErrorKind kind, const std::string& words) {
    const Error error = refusal();
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
  // A manifest with this text for its files, under its own true root hash where that is asked for.
  void put_manifest(const std::string& files) {
    far_.put("/out/manifest.json", "{\"version\": 1, \"files\": [" + files + "]}");
  }
  static std::string entry(const std::string& name, const std::string& size = "2") {
    return "{\"name\": \"" + name + "\", \"size_bytes\": " + size + ", \"sha256\": \"" +
           std::string(64, 'a') + "\"}";
  }
};

TEST_F(HostileFetch, AWrongByteNamesFileExpectedAndFound) {
  std::string bytes = files_["model.safetensors"];
  bytes[4'999'999] ^= 1;
  far_.put(model_, bytes);
  const Error error = refusal();
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("model.safetensors"));
  EXPECT_THAT(error.what(), HasSubstr("chunk 1 of 1"));
  EXPECT_THAT(error.what(), HasSubstr(sha256_hex(files_["model.safetensors"])));
  EXPECT_THAT(error.what(), HasSubstr(sha256_hex(bytes)));
  EXPECT_GE(far_.bytes_read, 15'000'000u) << "not fetched three times";
}

TEST_F(HostileFetch, AByteThatIsWrongOnlyOnceIsForgiven) {
  const std::string good = files_["model.safetensors"];
  std::string bad = good;
  bad[100] ^= 1;
  far_.put(model_, bad);
  int reads = 0;
  far_.on_read = [&](const RemotePath& path, uint64_t) {
    if (path.str() == model_ && ++reads == 2) far_.put(model_, good);
  };
  fetch(far_, from_, manifest_of(files_).root_sha256(), max_bytes_, to_, {});
  EXPECT_EQ(files_here(to_), with_manifest(files_));
}

TEST_F(HostileFetch, TooLongAndTooShortNameBothSizes) {
  far_.put(model_, files_["model.safetensors"] + "x");
  expect_refusal(ErrorKind::kRejected, "expected 5000000 bytes, found 5000001 bytes");
  far_.put(model_, files_["model.safetensors"].substr(1));
  expect_refusal(ErrorKind::kRejected, "expected 5000000 bytes, found 4999999 bytes");
}

TEST_F(HostileFetch, AFileThatShrinksWhileItIsRead) {
  far_.lies[model_] = {remote::FileInfo::Type::kRegular, 5'000'000};
  far_.put(model_, files_["model.safetensors"].substr(0, 4'500'000));
  expect_refusal(ErrorKind::kCorrupt, "ends after 4500000 bytes");
}

TEST_F(HostileFetch, AnEndlessFileIsCutAtItsSize) {
  far_.lies[model_] = {remote::FileInfo::Type::kRegular, 5'000'000};
  far_.endless = model_;
  expect_refusal(ErrorKind::kCorrupt, "SHA-256");
  EXPECT_EQ(far_.highest, 5'000'000u);
}

TEST_F(HostileFetch, AnEndlessManifestIsCut) {
  far_.endless = "/out/manifest.json";
  expect_refusal(ErrorKind::kCorrupt, "manifest.json");
  far_.put("/out/manifest.json", std::string(checkpoint::kMaxManifestBytes + 1, ' '));
  expect_refusal(ErrorKind::kCorrupt, "larger than");
  EXPECT_LE(far_.highest, checkpoint::kMaxManifestBytes + 1);
}

TEST_F(HostileFetch, ALinkFolderOrDeviceIsNotRead) {
  far_.put_other(model_);
  expect_refusal(ErrorKind::kRejected, "model.safetensors");
  far_.remove_tree(RemotePath(model_));
  far_.make_dirs(RemotePath(model_));
  expect_refusal(ErrorKind::kRejected, "model.safetensors");
  far_.put_other("/out/manifest.json");
  expect_refusal(ErrorKind::kRejected, "manifest.json");
}

TEST_F(HostileFetch, RealLinksAndFifos) {
  const fs::path far = dir_ / "far";
  put_here(far, with_manifest(files_));
  write_file_atomic(dir_ / "elsewhere", files_["model.safetensors"]);
  const auto local = remote::make_local_session();
  const auto expect_refused = [&] {
    const Error error = error_of([&] {
      fetch(*local, RemotePath(far.string()), manifest_of(files_).root_sha256(), max_bytes_, to_,
            {});
    });
    EXPECT_EQ(error.kind(), ErrorKind::kRejected) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("regular file"));
  };
  fs::remove(far / "model.safetensors");
  fs::create_symlink(dir_ / "elsewhere", far / "model.safetensors");
  expect_refused();
  fs::remove(far / "model.safetensors");
  ASSERT_EQ(::mkfifo((far / "model.safetensors").c_str(), 0600), 0);
  expect_refused();
}

TEST_F(HostileFetch, ASmallFileThatIsWrongAndAnEmptyOneThatShouldNotBe) {
  far_.put("/out/a.json", "{]");
  expect_refusal(ErrorKind::kCorrupt, "a.json at the facility is not what its manifest says");
  put_manifest(entry("a.json", "0"));
  far_.put("/out/a.json", "");
  checkpoint::Manifest manifest{{{"a.json", 0, std::string(64, 'a')}}};
  const Error error =
      error_of([&] { fetch(far_, from_, manifest.root_sha256(), max_bytes_, to_, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
}

TEST_F(HostileFetch, AMissingFileIsNamed) {
  far_.remove_tree(RemotePath(model_));
  expect_refusal(ErrorKind::kNotFound, "model.safetensors");
  far_.remove_tree(RemotePath("/out/manifest.json"));
  expect_refusal(ErrorKind::kNotFound, "manifest.json");
}

TEST_F(HostileFetch, ManifestNamesThatLeadElsewhere) {
  for (const char* name : {"../escape", "/etc/passwd", "a/b", "..", ".", "", ".hidden", "a\\u0000b",
                           "caf\\u00e9", "manifest.json", "a\\nb", "C:x"}) {
    put_manifest(entry(name));
    expect_refusal(ErrorKind::kCorrupt, "manifest.json");
    EXPECT_FALSE(fs::exists(dir_ / "escape"));
  }
  put_manifest(entry("same") + "," + entry("same"));
  expect_refusal(ErrorKind::kCorrupt, "same");
}

TEST_F(HostileFetch, ManifestSizesThatCannotBe) {
  for (const char* size : {"-1", "1e30", "18446744073709551617", "1.5", "\"5\"", "null"}) {
    put_manifest(entry("file", size));
    expect_refusal(ErrorKind::kCorrupt, "size_bytes");
  }
}

TEST_F(HostileFetch, AnotherManifestThanThePromisedOne) {
  Files others = files_;
  others["a.json"] = "[]";
  put_far(far_, "/out", others);
  const Error error = refusal();
  EXPECT_EQ(error.kind(), ErrorKind::kRejected);
  EXPECT_THAT(error.what(), HasSubstr(manifest_of(files_).root_sha256()));
  EXPECT_THAT(error.what(), HasSubstr(manifest_of(others).root_sha256()));
}

TEST_F(HostileFetch, MoreBytesThanExpected) {
  max_bytes_ = total(files_) - 1;
  expect_refusal(ErrorKind::kRejected, std::to_string(total(files_)));
  EXPECT_LT(far_.bytes_read, 10'000u) << "read files before it refused them";
}

TEST_F(HostileFetch, ALinkInTheWayOfThePartFileIsNotFollowed) {
  far_.put(model_, files_["model.safetensors"] + "x");
  refusal();  // leaves the work folder with the plan
  write_file_atomic(dir_ / "victim", "precious");
  const fs::path part = dir_ / "update.part/.model.safetensors.part";
  fs::create_symlink(dir_ / "victim", part);
  far_.put(model_, files_["model.safetensors"]);
  EXPECT_EQ(refusal().kind(), ErrorKind::kIo);
  EXPECT_EQ(read_file(dir_ / "victim", 100), "precious");
}

}  // namespace
}  // namespace xffl::transfer
