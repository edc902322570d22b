// Facilities with wrong or hostile answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "folders.h"

namespace xffl::transfer {
namespace {

using testing::HasSubstr;

// Returns wrong answers for some files.
class HostileSession final : public test::FakeSession {
 public:
  std::map<std::string, FileInfo> wrong_infos;
  std::string endless;  // a path whose reads always fill the buffer
  std::function<void(const RemotePath&, uint64_t)> on_read;
  std::map<uint64_t, int> wrong_reads;  // bytes, and how often they are still read wrong

  std::optional<FileInfo> stat(const RemotePath& path) override {
    const auto wrong = wrong_infos.find(path.str());
    return wrong == wrong_infos.end() ? FakeSession::stat(path) : wrong->second;
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    if (on_read) on_read(path, offset);
    if (path.str() != endless) {
      const size_t size = FakeSession::read(path, offset, out);
      for (auto& [place, left] : wrong_reads) {
        if (place < offset || place >= offset + size || left == 0) continue;
        out[place - offset] ^= std::byte{1};
        --left;
      }
      return size;
    }
    std::fill(out.begin(), out.end(), std::byte{'x'});
    highest = std::max(highest, offset + out.size());
    return out.size();
  }
  uint64_t highest = 0;
};

class HostileFetch : public testing::Test {
 protected:
  Files files_ = {{"a.json", "{}"}, {"model.safetensors", noise(5'000'000, 3)}};
  HostileSession facility_;
  test::TempDir dir_;
  fs::path to_ = dir_ / "update";
  const RemotePath from_{"/out"};
  const std::string model_ = "/out/model.safetensors";
  uint64_t max_bytes_ = 1u << 30;

  void SetUp() override { put_remote(facility_, "/out", files_); }

  Error rejection() {
    const std::string root = manifest_of(files_).root_sha256();
    const Error error = error_of([&] { fetch(facility_, from_, root, max_bytes_, to_, {}); });
    EXPECT_FALSE(fs::exists(to_));
    return error;
  }
  void expect_rejection(ErrorKind kind, const std::string& text) {
    const Error error = rejection();
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
  // Writes a manifest with this text for its files.
  void put_manifest(const std::string& files) {
    facility_.put("/out/manifest.json", "{\"version\": 1, \"files\": [" + files + "]}");
  }
  static std::string entry(const std::string& name, const std::string& size = "2") {
    return "{\"name\": \"" + name + "\", \"size_bytes\": " + size + ", \"sha256\": \"" +
           std::string(64, 'a') + "\"}";
  }
};

TEST_F(HostileFetch, ReportsFileAndHashesOfAWrongByte) {
  std::string bytes = files_["model.safetensors"];
  bytes[4'999'999] ^= 1;
  facility_.put(model_, bytes);
  const Error error = rejection();
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("model.safetensors"));
  EXPECT_THAT(error.what(), HasSubstr("chunk 1 of 1"));
  EXPECT_THAT(error.what(), HasSubstr(sha256_hex(files_["model.safetensors"])));
  EXPECT_THAT(error.what(), HasSubstr(sha256_hex(bytes)));
  EXPECT_GE(facility_.bytes_read, 15'000'000u) << "not fetched three times";
}

TEST_F(HostileFetch, AByteThatIsWrongOnceIsFetchedAgain) {
  const std::string good = files_["model.safetensors"];
  std::string bad = good;
  bad[100] ^= 1;
  facility_.put(model_, bad);
  int reads = 0;
  facility_.on_read = [&](const RemotePath& path, uint64_t) {
    if (path.str() == model_ && ++reads == 2) facility_.put(model_, good);
  };
  fetch(facility_, from_, manifest_of(files_).root_sha256(), max_bytes_, to_, {});
  EXPECT_EQ(local_files(to_), with_manifest(files_));
}

// Each chunk has its own three fetches.
TEST_F(HostileFetch, EachChunkMayBeWrongTwice) {
  constexpr uint64_t kChunk = 1u << 20;
  put_remote(facility_, "/out", files_, kChunk);
  for (uint64_t chunk = 0; chunk < 4; ++chunk) facility_.wrong_reads[chunk * kChunk + 2000] = 2;
  fetch(facility_, from_, manifest_of(files_, kChunk).root_sha256(), max_bytes_, to_, {});
  EXPECT_EQ(local_files(to_), with_manifest(files_, kChunk));
  for (const auto& [place, left] : facility_.wrong_reads) EXPECT_EQ(left, 0) << place;
}

TEST_F(HostileFetch, ReportsBothSizesOfAFileOfTheWrongSize) {
  facility_.put(model_, files_["model.safetensors"] + "x");
  expect_rejection(ErrorKind::kRejected, "expected 5000000 bytes, found 5000001 bytes");
  facility_.put(model_, files_["model.safetensors"].substr(1));
  expect_rejection(ErrorKind::kRejected, "expected 5000000 bytes, found 4999999 bytes");
}

TEST_F(HostileFetch, RejectsAFileThatShrinksDuringTheFetch) {
  facility_.wrong_infos[model_] = {remote::FileInfo::Type::kRegular, 5'000'000};
  facility_.put(model_, files_["model.safetensors"].substr(0, 4'500'000));
  expect_rejection(ErrorKind::kCorrupt, "ends after 4500000 bytes");
}

TEST_F(HostileFetch, ReadsAnEndlessFileOnlyToItsSize) {
  facility_.wrong_infos[model_] = {remote::FileInfo::Type::kRegular, 5'000'000};
  facility_.endless = model_;
  expect_rejection(ErrorKind::kCorrupt, "SHA-256");
  EXPECT_EQ(facility_.highest, 5'000'000u);
}

TEST_F(HostileFetch, ReadsAnEndlessManifestOnlyToTheLimit) {
  facility_.endless = "/out/manifest.json";
  expect_rejection(ErrorKind::kCorrupt, "manifest.json");
  facility_.put("/out/manifest.json", std::string(checkpoint::kMaxManifestBytes + 1, ' '));
  expect_rejection(ErrorKind::kCorrupt, "larger than");
  EXPECT_LE(facility_.highest, checkpoint::kMaxManifestBytes + 1);
}

TEST_F(HostileFetch, RejectsLinksFoldersAndDevices) {
  facility_.put_other(model_);
  expect_rejection(ErrorKind::kRejected, "model.safetensors");
  facility_.remove_tree(RemotePath(model_));
  facility_.make_dirs(RemotePath(model_));
  expect_rejection(ErrorKind::kRejected, "model.safetensors");
  facility_.put_other("/out/manifest.json");
  expect_rejection(ErrorKind::kRejected, "manifest.json");
}

TEST_F(HostileFetch, RejectsRealLinksAndFifos) {
  const fs::path facility = dir_ / "far";
  put_local(facility, with_manifest(files_));
  write_file_atomic(dir_ / "elsewhere", files_["model.safetensors"]);
  const auto local = remote::make_local_session();
  const auto expect_refused = [&] {
    const Error error = error_of([&] {
      fetch(*local, RemotePath(facility.string()), manifest_of(files_).root_sha256(), max_bytes_,
            to_, {});
    });
    EXPECT_EQ(error.kind(), ErrorKind::kRejected) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("regular file"));
  };
  fs::remove(facility / "model.safetensors");
  fs::create_symlink(dir_ / "elsewhere", facility / "model.safetensors");
  expect_refused();
  fs::remove(facility / "model.safetensors");
  ASSERT_EQ(::mkfifo((facility / "model.safetensors").c_str(), 0600), 0);
  expect_refused();
}

TEST_F(HostileFetch, RejectsWrongSmallFilesAndEmptyFiles) {
  facility_.put("/out/a.json", "{]");
  expect_rejection(ErrorKind::kCorrupt, "a.json at the facility differs from its manifest");
  put_manifest(entry("a.json", "0"));
  facility_.put("/out/a.json", "");
  checkpoint::Manifest manifest{{{"a.json", 0, std::string(64, 'a')}}};
  const Error error =
      error_of([&] { fetch(facility_, from_, manifest.root_sha256(), max_bytes_, to_, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
}

TEST_F(HostileFetch, ReportsAMissingFile) {
  facility_.remove_tree(RemotePath(model_));
  expect_rejection(ErrorKind::kNotFound, "model.safetensors");
  facility_.remove_tree(RemotePath("/out/manifest.json"));
  expect_rejection(ErrorKind::kNotFound, "manifest.json");
}

TEST_F(HostileFetch, RejectsManifestNamesOutsideTheFolder) {
  for (const char* name : {"../escape", "/etc/passwd", "a/b", "..", ".", "", ".hidden", "a\\u0000b",
                           "caf\\u00e9", "manifest.json", "a\\nb", "C:x"}) {
    put_manifest(entry(name));
    expect_rejection(ErrorKind::kCorrupt, "manifest.json");
    EXPECT_FALSE(fs::exists(dir_ / "escape"));
  }
  put_manifest(entry(std::string(4000, 'z')));
  expect_rejection(ErrorKind::kCorrupt, "1 to 200 characters");
  put_manifest(entry("same") + "," + entry("same"));
  expect_rejection(ErrorKind::kCorrupt, "same");
}

// A file system may fold case.
TEST_F(HostileFetch, RejectsManifestNamesThatDifferOnlyInCase) {
  put_manifest(entry("Same") + "," + entry("same"));
  expect_rejection(ErrorKind::kCorrupt, "differs from 'same' only in case");
  put_manifest(entry("MANIFEST.JSON"));
  expect_rejection(ErrorKind::kCorrupt, "only in case");
}

TEST_F(HostileFetch, RejectsImpossibleManifestSizes) {
  for (const char* size : {"-1", "1e30", "18446744073709551617", "1.5", "\"5\"", "null"}) {
    put_manifest(entry("file", size));
    expect_rejection(ErrorKind::kCorrupt, "size_bytes");
  }
}

TEST_F(HostileFetch, RejectsAManifestWithAnotherRootHash) {
  Files others = files_;
  others["a.json"] = "[]";
  put_remote(facility_, "/out", others);
  const Error error = rejection();
  EXPECT_EQ(error.kind(), ErrorKind::kRejected);
  EXPECT_THAT(error.what(), HasSubstr(manifest_of(files_).root_sha256()));
  EXPECT_THAT(error.what(), HasSubstr(manifest_of(others).root_sha256()));
}

TEST_F(HostileFetch, RejectsMoreBytesThanTheLimit) {
  max_bytes_ = total(files_) - 1;
  expect_rejection(ErrorKind::kRejected, std::to_string(total(files_)));
  EXPECT_LT(facility_.bytes_read, 10'000u) << "read files before the rejection";
}

TEST_F(HostileFetch, DoesNotFollowALinkAtThePartFilesPath) {
  facility_.put(model_, files_["model.safetensors"] + "x");
  rejection();  // leaves the work folder with the plan
  write_file_atomic(dir_ / "victim", "precious");
  const fs::path part = dir_ / "update.part/.model.safetensors.part";
  fs::create_symlink(dir_ / "victim", part);
  facility_.put(model_, files_["model.safetensors"]);
  EXPECT_EQ(rejection().kind(), ErrorKind::kIo);
  EXPECT_EQ(read_file(dir_ / "victim", 100), "precious");
}

}  // namespace
}  // namespace xffl::transfer
