#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "folders.h"
#include "support/peak_memory.h"

namespace xffl::transfer {
namespace {

using testing::HasSubstr;

class Fetch : public testing::Test {
 protected:
  Files files_ = sample_files();
  test::FakeSession facility_;
  test::FaultySession link_{facility_};
  test::TempDir dir_;
  fs::path to_ = dir_ / "update";
  const RemotePath from_{"/scratch/out"};

  void SetUp() override { put_remote(facility_, from_.str(), files_); }

  Result fetch_now(std::stop_token stop = {}, const OnProgress& on_progress = {}) {
    return fetch(link_, from_, manifest_of(files_).root_sha256(), 1u << 30, to_, stop, on_progress);
  }
  void expect_complete() {
    EXPECT_TRUE(local_files(to_) == with_manifest(files_));
    EXPECT_FALSE(fs::exists(dir_ / "update.part"));
  }
};

TEST_F(Fetch, DownloadsAFolder) {
  EXPECT_EQ(fetch_now().moved_bytes, total(files_));
  expect_complete();
  checkpoint::verify_folder(to_, checkpoint::read_manifest(to_));
}

// The files need three queries.
TEST_F(Fetch, DownloadsManySmallFiles) {
  files_.clear();
  for (int i = 0; i < 150; ++i)
    files_["part-" + std::to_string(1000 + i)] = noise(5, static_cast<uint64_t>(i));
  put_remote(facility_, from_.str(), files_);
  EXPECT_EQ(fetch_now().moved_bytes, total(files_));
  expect_complete();
}

// A model of several gigabytes has several files.
TEST_F(Fetch, ContinuesInTheSecondOfTwoLargeFiles) {
  files_ = {{"model-1", noise(5'000'000, 1)}, {"model-2", noise(6'000'000, 2)}};
  put_remote(facility_, from_.str(), files_);
  link_.drop_after(8'000'000);
  error_of([&] { fetch_now(); });
  link_.reconnect();
  const fs::path begun = dir_ / "update.part/.model-2.part";
  ASSERT_TRUE(fs::exists(begun));
  const uint64_t there = fs::file_size(begun);
  EXPECT_GT(there, 2'990'000u);
  EXPECT_EQ(fetch_now().moved_bytes, 6'000'000u - there);
  expect_complete();
}

// The log-in node has limits for a user's processes; the site names hosts for large transfers.
TEST_F(Fetch, LargeFilesUseTheBulkSession) {
  test::FaultySession mover(facility_);
  fetch({link_, mover}, from_, manifest_of(files_).root_sha256(), 1u << 30, to_, {});
  expect_complete();
  EXPECT_LT(link_.bytes_passed(), 3000u);
  EXPECT_EQ(mover.bytes_passed(), 9'000'001u);
}

// Rejects a query whose answer is longer than the output of one command.
class CommandSession : public test::FakeSession {
 public:
  std::vector<remote::FileView> look(const RemotePath& folder,
                                     std::span<const remote::FileQuery> files) override {
    constexpr uint64_t kOutputBytes = 16u << 20, kHeaders = 1u << 20;
    uint64_t bytes = kHeaders;
    for (const remote::FileQuery& file : files) bytes += file.max_bytes;
    if (bytes > kOutputBytes) throw Error(ErrorKind::kRemote, "the output is too long");
    return FakeSession::look(folder, files);
  }
};

TEST_F(Fetch, AQueryForSmallFilesFitsTheOutputOfOneCommand) {
  files_.clear();
  for (int i = 0; i < 6; ++i)
    files_["part-" + std::to_string(i)] = noise(4u << 20, static_cast<uint64_t>(i));
  CommandSession facility;
  put_remote(facility, from_.str(), files_);
  fetch(facility, from_, manifest_of(files_).root_sha256(), 1u << 30, to_, {});
  expect_complete();
}

TEST_F(Fetch, MovesNothingWhenComplete) {
  fetch_now();
  link_.drop_after(0);
  EXPECT_EQ(fetch_now().moved_bytes, 0u);
  expect_complete();
}

TEST_F(Fetch, FetchesALocallyDamagedFileAgain) {
  fetch_now();
  write_file_atomic(to_ / "config.json", "[]\n");
  fetch_now();
  expect_complete();
}

TEST_F(Fetch, FetchesADamagedFileOfAnInterruptedFetchAgain) {
  link_.drop_after(8'500'000);
  error_of([&] { fetch_now(); });
  link_.reconnect();
  ASSERT_TRUE(fs::exists(dir_ / "update.part/config.json"));
  write_file_atomic(dir_ / "update.part/config.json", "[]\n");  // of the same size
  fetch_now();
  expect_complete();
}

TEST_F(Fetch, ADamagedManifestIsReplaced) {
  link_.drop_after(8'500'000);
  error_of([&] { fetch_now(); });
  link_.reconnect();
  write_file_atomic(dir_ / "update.part/manifest.json", "{\"version\": 1,");
  fetch_now();
  expect_complete();
  write_file_atomic(to_ / "manifest.json", "{\"version\": 1,");
  fetch_now();
  expect_complete();
}

TEST_F(Fetch, ReplacesAnOlderUpdate) {
  fetch_now();
  files_["config.json"] = "{ }\n";
  files_.erase("empty");
  put_remote(facility_, from_.str(), files_);
  fetch_now();
  expect_complete();
}

TEST_F(Fetch, NeverReplacesAForeignFolder) {
  put_local(to_, {{"thesis.tex", "ten years"}});
  const Error error = error_of([&] { fetch_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_EQ(local_files(to_), (Files{{"thesis.tex", "ten years"}}));
}

// The link drops after every N bytes.
class FetchResumes : public Fetch, public testing::WithParamInterface<uint64_t> {};

TEST_P(FetchResumes, AfterDrops) {
  int calls = 0;
  for (bool done = false; !done && calls < 1000; ++calls) {
    link_.drop_after(GetParam());
    try {
      fetch_now();
      done = true;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
      EXPECT_FALSE(fs::exists(to_)) << "incomplete under its final name";
    }
  }
  expect_complete();
  EXPECT_GT(calls, 1);
  // Only the manifest travels again.
  EXPECT_LE(link_.bytes_passed(), total(files_) + static_cast<uint64_t>(calls) * 2000);
}

INSTANTIATE_TEST_SUITE_P(Offsets, FetchResumes,
                         testing::Values(700'001, 4'200'001, 5'000'003, 8'500'001));

TEST_F(Fetch, ContinuesAtTheEndOfThePartFile) {
  link_.drop_after(8'500'000);
  error_of([&] { fetch_now(); });
  const uint64_t there = fs::file_size(dir_ / "update.part/.model.safetensors.part");
  EXPECT_GT(there, 8'499'000u);  // all but the manifest and the small files
  link_.reconnect();
  EXPECT_EQ(fetch_now().moved_bytes, 9'000'001u - there);
  expect_complete();
}

TEST_F(Fetch, RepairsADamagedPartFile) {
  link_.drop_after(8'500'000);
  error_of([&] { fetch_now(); });
  const fs::path part = dir_ / "update.part/.model.safetensors.part";
  std::string bytes = read_file(part, 1u << 30);
  bytes[12345] ^= 1;
  write_file_atomic(part, bytes);
  link_.reconnect();
  fetch_now();
  expect_complete();
}

TEST_F(Fetch, DoesNotContinueAPartFileLongerThanTheFile) {
  link_.drop_after(8'500'000);
  error_of([&] { fetch_now(); });
  write_file_atomic(dir_ / "update.part/.model.safetensors.part", noise(9'000'002, 1));
  link_.reconnect();
  fetch_now();
  expect_complete();
}

TEST_F(Fetch, DoesNotContinueAPartFileOfAnotherUpdate) {
  link_.drop_after(8'500'000);
  error_of([&] { fetch_now(); });
  link_.reconnect();
  files_["model.safetensors"] = noise(9'000'001, 8);
  put_remote(facility_, from_.str(), files_);
  EXPECT_EQ(fetch_now().moved_bytes, total(files_));
  expect_complete();
}

TEST_F(Fetch, StopsAndContinues) {
  std::stop_source stop;
  const Error error = error_of([&] {
    fetch_now(stop.get_token(), [&](const Progress& progress) {
      if (progress.done_bytes > 4u << 20) stop.request_stop();
    });
  });
  EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  EXPECT_FALSE(fs::exists(to_));
  EXPECT_LT(fetch_now().moved_bytes, total(files_));
  expect_complete();
}

TEST_F(Fetch, ReportsProgress) {
  uint64_t last = 0, expected = total(files_);
  fetch_now({}, [&](const Progress& progress) {
    EXPECT_GE(progress.done_bytes, last);
    EXPECT_EQ(progress.total_bytes, expected);
    last = progress.done_bytes;
  });
  EXPECT_EQ(last, expected);
}

TEST_F(Fetch, SurvivesALostReply) {
  for (const char* operation : {"stat", "read", "download"})
    for (int nth : {1, 2, 3, 4}) {
      fs::remove_all(to_);
      link_.lose_reply(operation, nth);
      try {
        fetch_now();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kRemote);
        link_.reconnect();
        fetch_now();
      }
      link_.reconnect();
      expect_complete();
    }
}

TEST_F(Fetch, WorksWithALocalSession) {
  put_local(dir_ / "far", with_manifest(files_));
  const auto local = remote::make_local_session();
  fetch(*local, RemotePath((dir_ / "far").string()), manifest_of(files_).root_sha256(), 1u << 30,
        to_, {});
  expect_complete();
}

// Gives a file as fast as the fetch takes it, faster than anything hashes.
class FastSession : public test::FakeSession {
 public:
  FastSession(const checkpoint::Manifest& manifest, const std::string& file) : file_(file) {
    put("/out/manifest.json", checkpoint::format_manifest(manifest));
    put("/out/model.safetensors", "");
  }
  std::optional<FileInfo> stat(const RemotePath& path) override {
    auto info = FakeSession::stat(path);
    if (info && info->size_bytes == 0) info->size_bytes = file_.size();
    return info;
  }
  void download(const RemotePath&, uint64_t offset, uint64_t length, const remote::Sink& sink,
                std::stop_token) override {
    constexpr uint64_t kPieceBytes = 256u << 10;
    const auto bytes = std::as_bytes(std::span(file_)).subspan(offset, length);
    for (uint64_t at = 0; at < length; at += kPieceBytes)
      sink(bytes.subspan(at, std::min(kPieceBytes, length - at)));
  }

 private:
  const std::string& file_;
};

// Each fetch alone may hold 24 MiB.
TEST(FetchMemory, OfManyFetchesAtOnceIsLimited) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate additional memory";
#endif
  constexpr int kFetches = 12;
  const std::string file = noise(32u << 20, 1);
  const checkpoint::Manifest manifest = manifest_of({{"model.safetensors", file}});
  const test::TempDir dir;
  std::vector<std::unique_ptr<FastSession>> facilities;
  for (int i = 0; i < kFetches; ++i)
    facilities.push_back(std::make_unique<FastSession>(manifest, file));
  const auto fetch_all = [&] {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kFetches; ++i)
      threads.emplace_back([&, i] {
        fetch(*facilities[static_cast<size_t>(i)], RemotePath("/out"), manifest.root_sha256(),
              1u << 30, dir / std::to_string(i), {});
      });
  };
  const long growth = test::growth_in_child(fetch_all);
  std::cout << kFetches << " fetches: " << growth << " KiB\n";
  EXPECT_GT(growth, 0);
  EXPECT_LT(growth, 150 << 10);
}

}  // namespace
}  // namespace xffl::transfer
