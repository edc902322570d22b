// Verification by chunk: kept chunks, repaired chunks, and the bytes that travel twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "folders.h"
#include "support/failing_call.h"

namespace xffl::transfer {
namespace {

using testing::HasSubstr;

constexpr uint64_t kChunk = 1u << 20;
constexpr uint64_t kBlock = 256u << 10;      // a push resumes at a block
constexpr uint64_t kSize = 10 * kChunk + 7;  // larger than a small file

class Chunks : public testing::Test {
 protected:
  Files files_ = {{"config.json", "{}\n"}, {"model.safetensors", noise(kSize, 7)}};
  test::FakeSession facility_;
  test::FaultySession link_{facility_};
  test::TempDir dir_;

  std::string flipped(uint64_t at) {
    std::string bytes = files_["model.safetensors"];
    bytes[at] ^= 1;
    return bytes;
  }
};

class FetchChunks : public Chunks {
 protected:
  const RemotePath from_{"/out"};
  const std::string model_ = "/out/model.safetensors";
  const fs::path to_ = dir_ / "update";
  const fs::path part_ = dir_ / "update.part/.model.safetensors.part";

  Fetched fetched_;  // by the last call

  void SetUp() override { put_remote(facility_, "/out", files_, kChunk); }
  Result fetch_now() {
    return fetched_ = fetch(link_, from_, manifest_of(files_).root_sha256(), 1u << 30, to_, {});
  }
  // Also compares the block hashes, whatever chunks came twice.
  void expect_complete() {
    EXPECT_TRUE(local_files(to_) == with_manifest(files_, kChunk));
    const checkpoint::Manifest expected = manifest_of(files_);
    ASSERT_EQ(fetched_.manifest, expected);
    for (size_t i = 0; i < expected.files.size(); ++i)
      EXPECT_EQ(fetched_.manifest.files[i].block_xxh3, expected.files[i].block_xxh3);
  }
  // Leaves a part file with damaged chunks, as after a crash of this machine.
  void leave_part(uint64_t size, std::initializer_list<uint64_t> damaged) {
    link_.drop_after(5'000'000);
    error_of([&] { fetch_now(); });
    link_.reconnect();
    std::string bytes = files_["model.safetensors"].substr(0, size);
    for (uint64_t at : damaged) bytes[at] ^= 1;
    write_file_atomic(part_, bytes);
  }
};

TEST_F(FetchChunks, ADamagedChunkOnDiskIsFetchedAlone) {
  leave_part(kSize, {3 * kChunk + 5, 8 * kChunk});
  EXPECT_EQ(fetch_now().moved_bytes, 2 * kChunk);
  expect_complete();
}

TEST_F(FetchChunks, FetchesADamagedChunkAndTheMissingEnd) {
  leave_part(6 * kChunk + 100, {5 * kChunk});
  EXPECT_EQ(fetch_now().moved_bytes, kSize - 5 * kChunk - 100);
  expect_complete();
}

TEST_F(FetchChunks, FetchesAnIncompleteChunkWithADamagedBeginning) {
  leave_part(6 * kChunk + 100, {6 * kChunk + 50});
  EXPECT_LE(fetch_now().moved_bytes, kSize - 6 * kChunk + kChunk);
  expect_complete();
}

// A bad sector in the bytes of an earlier call.
TEST_F(FetchChunks, FetchesAgainTheBytesThatTheDiskCannotRead) {
  constexpr int kNoFilters = 77;
  leave_part(6 * kChunk, {});
  for (const char* present : {"a finished file and a part file", "the folder"}) {
    const int outcome = test::in_child([&] {
      if (!test::fail_calls(SYS_pread64, EIO)) return kNoFilters;
      try {
        return fetch_now().moved_bytes == total(files_) ? 0 : 1;
      } catch (const Error&) {
        return 2;
      }
    });
    if (outcome == kNoFilters) GTEST_SKIP() << "needs filters of system calls (seccomp)";
    EXPECT_EQ(outcome, 0) << present;
    EXPECT_EQ(fetch_now().moved_bytes, 0u) << present;
    expect_complete();
  }
}

// RLIMIT_FSIZE stands for a disk that becomes full at the last write: all bytes have arrived.
TEST_F(FetchChunks, ReportsAFailedWriteOfTheLastBytes) {
  struct rlimit usual {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &usual), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit { kSize - 3, usual.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const ErrorKind kind = test::kind_of([&] { fetch_now(); });
  ::setrlimit(RLIMIT_FSIZE, &usual);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_FALSE(fs::exists(to_));
  fetch_now();
  expect_complete();
}

TEST_F(FetchChunks, AChunkThatArrivesWrongOnceIsFetchedAgainAlone) {
  class Once final : public test::FakeSession {
   public:
    std::function<void()> on_second;
    std::vector<std::pair<uint64_t, uint64_t>> ranges;

    void download(const RemotePath& path, uint64_t offset, uint64_t length,
                  const remote::Sink& sink, std::stop_token stop) override {
      ranges.push_back({offset, length});
      if (ranges.size() == 2) on_second();
      FakeSession::download(path, offset, length, sink, stop);
    }
  } once;
  put_remote(once, "/out", files_, kChunk);
  once.put(model_, flipped(4 * kChunk));
  once.on_second = [&] { once.put(model_, files_["model.safetensors"]); };
  const Result result = fetched_ =
      fetch(once, from_, manifest_of(files_).root_sha256(), 1u << 30, to_, {});
  expect_complete();
  ASSERT_GE(once.ranges.size(), 2u);
  EXPECT_EQ(once.ranges[1], (std::pair<uint64_t, uint64_t>{4 * kChunk, kChunk}));
  // Complete chunks after the wrong one are kept.
  EXPECT_LE(result.moved_bytes, total(files_) + kChunk);
}

TEST_F(FetchChunks, ReportsAChunkThatStaysWrong) {
  facility_.put(model_, flipped(4 * kChunk + 9));
  link_.drop_after(total(files_) + 2 * kChunk + 3000);  // before a fourth fetch of the chunk
  const Error error = error_of([&] { fetch_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("/out/model.safetensors"));
  EXPECT_THAT(error.what(), HasSubstr("chunk 5 of 11 (1048576 bytes from byte 4194304)"));
  link_.reconnect();
  // After a repair at the facility, that chunk and the bytes after it are fetched.
  facility_.put(model_, files_["model.safetensors"]);
  EXPECT_LE(fetch_now().moved_bytes, kSize - 4 * kChunk);
  expect_complete();
}

TEST_F(FetchChunks, WrongChunkHashesNeverProduceAFolder) {
  checkpoint::Manifest manifest = manifest_of(files_, kChunk);
  manifest.files[1].prefix_sha256[2] = std::string(64, 'a');
  facility_.put("/out/manifest.json", checkpoint::format_manifest(manifest));
  EXPECT_THAT(error_of([&] { fetch_now(); }).what(), HasSubstr("chunk 3 of 11"));
  // The chunk hashes of another content with the expected root hash: the last chunk differs.
  const std::string other = noise(kSize, 8);
  Files others = {{"config.json", "{}\n"}, {"model.safetensors", other}};
  checkpoint::Manifest mixed = manifest_of(others, kChunk);
  mixed.files[1].sha256 = manifest.files[1].sha256;
  facility_.put(model_, other);
  facility_.put("/out/manifest.json", checkpoint::format_manifest(mixed));
  fs::remove_all(dir_ / "update.part");
  const Error error = error_of([&] { fetch_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("chunk 11 of 11"));
  EXPECT_FALSE(fs::exists(to_));
}

TEST_F(FetchChunks, AManifestWithoutChunksIsVerifiedAsAWhole) {
  put_remote(facility_, "/out", files_);
  leave_part(kSize, {3 * kChunk});
  EXPECT_EQ(fetch_now().moved_bytes, kSize);
  EXPECT_TRUE(local_files(to_) == with_manifest(files_));
}

TEST_F(FetchChunks, ReportsTheFolderThatLacksSpace) {
  const uint64_t huge = uint64_t{1} << 49;
  checkpoint::Manifest manifest{
      {{"x", huge, std::string(64, 'a')}, {"y", 5, std::string(64, 'a')}}};
  facility_.put("/out/manifest.json", checkpoint::format_manifest(manifest));
  const Error error = error_of(
      [&] { fetch(facility_, from_, manifest.root_sha256(), uint64_t{1} << 50, to_, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr("not enough space in " + to_.string() + ".part"));
  EXPECT_THAT(error.what(), HasSubstr("are free; free at least"));
}

// A hole stands for the bytes on disk. The stop request comes after the query of the space.
TEST_F(FetchChunks, AFetchThatContinuesNeedsSpaceForTheRestOnly) {
  const uint64_t huge = 2 * fs::space(dir_.path()).available;
  checkpoint::Manifest manifest{{{"x", huge, std::string(64, 'a')}}};
  facility_.put("/out/manifest.json", checkpoint::format_manifest(manifest));
  std::stop_source stop;
  const auto fetch_huge = [&] {
    fetch(facility_, from_, manifest.root_sha256(), huge, to_, stop.get_token());
  };
  EXPECT_EQ(error_of(fetch_huge).kind(), ErrorKind::kIo);
  write_file_atomic(dir_ / "update.part/.x.part", "");
  fs::resize_file(dir_ / "update.part/.x.part", huge - 1);
  stop.request_stop();
  EXPECT_EQ(error_of(fetch_huge).kind(), ErrorKind::kCancelled);
  fs::rename(dir_ / "update.part/.x.part", dir_ / "update.part/x");
  EXPECT_EQ(error_of(fetch_huge).kind(), ErrorKind::kCancelled) << "under its final name";
}

TEST_F(FetchChunks, ASmallModelNeedsTwoQueries) {
  files_ = {{"config.json", "{}\n"},
            {"model.safetensors", noise(1'000'000, 3)},
            {"a", "1"},
            {"b", "2"},
            {"c", "3"}};
  class Counting final : public test::FakeSession {
   public:
    int looks = 0;
    std::vector<remote::FileView> look(const RemotePath& folder,
                                       std::span<const remote::FileQuery> files) override {
      ++looks;
      return FakeSession::look(folder, files);
    }
    void download(const RemotePath&, uint64_t, uint64_t, const remote::Sink&,
                  std::stop_token) override {
      ADD_FAILURE() << "streamed a small file";
    }
  } counting;
  put_remote(counting, "/out", files_);
  fetch(counting, from_, manifest_of(files_).root_sha256(), 1u << 30, to_, {});
  EXPECT_EQ(counting.looks, 2);  // the manifest, the files
}

class PushChunks : public Chunks, public testing::WithParamInterface<bool> {
 protected:
  const RemotePath to_{"/models/one"};
  const std::string part_ = "/models/one/.model.safetensors.part";

  void SetUp() override {
    facility_.hashes = GetParam();  // whether the facility can compute SHA-256
    put_local(dir_ / "model", files_);
  }
  Result push_now() { return push(link_, dir_ / "model", manifest_of(files_, kChunk), to_, {}); }
  Result repair_now() {
    return repair(link_, dir_ / "model", manifest_of(files_, kChunk), to_, {});
  }
  void expect_complete() {
    EXPECT_TRUE(remote_files(facility_, to_.str()) == with_manifest(files_, kChunk));
  }
  void interrupt_after(uint64_t bytes) {
    link_.drop_after(bytes);
    error_of([&] { push_now(); });
    link_.reconnect();
  }
};

TEST_P(PushChunks, SendsOnlyMissingBlocks) {
  interrupt_after(6 * kChunk + 3 * kBlock + 5000);
  EXPECT_EQ(push_now().moved_bytes, kSize - 6 * kChunk - 3 * kBlock);
  expect_complete();
  EXPECT_EQ(facility_.ranges_hashed, GetParam() ? 6 + 3 : 0);
}

TEST_P(PushChunks, ReadsBackAtAFacilityThatMayNotHash) {
  interrupt_after(6 * kChunk + 3 * kBlock + 5000);
  Endpoint facility(link_);
  facility.may_hash = false;
  const Result pushed = push(facility, dir_ / "model", manifest_of(files_, kChunk), to_, {});
  EXPECT_EQ(pushed.moved_bytes, kSize - 6 * kChunk - 3 * kBlock);
  expect_complete();
  EXPECT_EQ(facility_.ranges_hashed, 0);
}

TEST_P(PushChunks, ADamagedBlockIsSentAgainAlone) {
  interrupt_after(6 * kChunk + 5000);
  std::string bytes = facility_.content(part_);
  bytes[2 * kChunk + 1] ^= 1;
  facility_.put(part_, bytes);
  EXPECT_EQ(push_now().moved_bytes, kSize - 6 * kChunk + kBlock);
  expect_complete();
}

// Another program may cut the file between two answers of the facility.
TEST_P(PushChunks, APartFileThatShrinksDuringItsCheckIsSentAgain) {
  interrupt_after(6 * kChunk + 5000);
  bool is_cut = false;
  link_.after_stat = [&](const RemotePath& path) {
    if (path.str() == part_ && !std::exchange(is_cut, true))
      facility_.put(part_, facility_.content(part_).substr(0, 2 * kChunk + 10));
  };
  EXPECT_EQ(push_now().moved_bytes, kSize - 2 * kChunk);
  EXPECT_TRUE(is_cut);
  expect_complete();
}

TEST_P(PushChunks, HolesAreFilled) {
  interrupt_after(2 * kChunk + 5000);
  std::string bytes = files_["model.safetensors"];  // the full size, with holes
  for (uint64_t at : {uint64_t{0}, 4 * kChunk, 5 * kChunk, 9 * kChunk})
    std::fill_n(bytes.begin() + static_cast<long>(at), kChunk / 2, '\0');
  facility_.put(part_, bytes);
  EXPECT_EQ(push_now().moved_bytes, 4 * kChunk / 2);
  expect_complete();
}

TEST_P(PushChunks, EachDropCostsAtMostOneBlock) {
  int calls = 0;
  for (bool done = false; !done && calls < 100; ++calls) {
    link_.drop_after(GetParam() ? 2 * kChunk + 100 : 14 * kChunk);
    try {
      push_now();
      done = true;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
    }
  }
  expect_complete();
  EXPECT_LE(facility_.bytes_written, total(files_) + static_cast<uint64_t>(calls) * kBlock + 3000);
}

TEST_P(PushChunks, RepairSendsDamagedChunksAndSmallFiles) {
  push_now();
  facility_.put("/models/one/model.safetensors", flipped(4 * kChunk + 9));
  facility_.put("/models/one/config.json", "[]\n");  // of the same size
  facility_.put("/models/one/notes", "foreign");
  EXPECT_EQ(push_now().moved_bytes, 0u) << "push() trusts names and sizes";
  EXPECT_EQ(repair_now().moved_bytes, kBlock + 3);
  expect_complete();
  EXPECT_EQ(repair_now().moved_bytes, 3u);
  expect_complete();
}

TEST_P(PushChunks, RepairReplacesALargeFileOfAnotherSizeOrType) {
  push_now();
  facility_.put("/models/one/model.safetensors", "short");
  EXPECT_EQ(repair_now().moved_bytes, total(files_));
  expect_complete();
  facility_.put_other("/models/one/model.safetensors");
  EXPECT_EQ(repair_now().moved_bytes, total(files_));
  expect_complete();
}

TEST_P(PushChunks, AnInterruptedRepairIsCompletedByTheNext) {
  int calls = 0;
  for (const char* operation : {"rename", "write", "remove_tree"})
    for (int nth = 1; nth <= 4; ++nth) {
      facility_.remove_tree(to_);
      push_now();
      facility_.put("/models/one/model.safetensors", flipped(4 * kChunk + 9));
      facility_.put("/models/one/notes", "foreign");
      link_.lose_reply(operation, nth);
      try {
        repair_now();
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
        ++calls;
        link_.reconnect();
        repair_now();
      }
      link_.reconnect();
      expect_complete();
    }
  EXPECT_GT(calls, 5);
}

// repair() of an absent folder, or of another model, sends like push().
TEST_P(PushChunks, RepairSendsMissingFiles) {
  EXPECT_EQ(repair_now().moved_bytes, total(files_));
  expect_complete();
  files_["model.safetensors"] = noise(kSize, 9);
  put_local(dir_ / "model", files_);
  EXPECT_EQ(repair_now().moved_bytes, kSize + 3);
  expect_complete();
}

TEST_P(PushChunks, IsPushedComparesManifestAndSizes) {
  const checkpoint::Manifest manifest = manifest_of(files_, kChunk);
  EXPECT_FALSE(is_pushed(link_, manifest, to_));
  push_now();
  EXPECT_TRUE(is_pushed(link_, manifest, to_));
  facility_.put("/models/one/model.safetensors", "short");
  EXPECT_FALSE(is_pushed(link_, manifest, to_));
  push_now();
  files_["config.json"] = "{ }";
  EXPECT_FALSE(is_pushed(link_, manifest_of(files_, kChunk), to_));
  facility_.remove_tree(to_ / "manifest.json");
  EXPECT_FALSE(is_pushed(link_, manifest, to_));
}

INSTANTIATE_TEST_SUITE_P(Facility, PushChunks, testing::Bool(),
                         [](const auto& test) { return test.param ? "Hashes" : "IsReadBack"; });

class PushToFacility : public PushChunks {
 protected:
  void SetUp() override { put_local(dir_ / "model", files_); }
};

TEST_P(PushToFacility, ReportsTheFolderThatLacksSpace) {
  files_["model.safetensors"] = noise(20u << 20, 5);
  files_["tokenizer.json"] = "{}\n";  // the last file needs the least
  put_local(dir_ / "model", files_);
  facility_.free = 20u << 20;
  const Error error = error_of([&] { push_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr("not enough space in /models/one at the facility"));
  EXPECT_THAT(error.what(), HasSubstr(std::to_string(facility_.free.value()) + " are free"));
  EXPECT_EQ(facility_.bytes_written, 0u);
  facility_.free = 30u << 20;
  push_now();
  expect_complete();
}

TEST_P(PushToFacility, APushThatContinuesNeedsSpaceForTheRestOnly) {
  files_["model.safetensors"] = noise(20u << 20, 5);
  put_local(dir_ / "model", files_);
  interrupt_after(15u << 20);
  facility_.free = 10u << 20;
  push_now();
  expect_complete();
}

// A job needs space for the model that it unpacks there.
TEST_P(PushToFacility, AModelThatIsNotPushedNeedsSpaceToo) {
  facility_.make_dirs(to_);
  facility_.free = 20u << 20;
  const Error error = error_of([&] { require_space(link_, to_, 30u << 20); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr("not enough space in /models/one at the facility"));
  facility_.free = 100u << 20;
  EXPECT_NO_THROW(require_space(link_, to_, 30u << 20));
}

TEST_P(PushToFacility, ASmallModelIsOneQueryAndOneMessage) {
  files_ = {{"config.json", "{}\n"}, {"model.safetensors", noise(1'000'000, 3)}, {"a", ""}};
  fs::remove_all(dir_ / "model");
  put_local(dir_ / "model", files_);
  class Counting final : public test::FakeSession {
   public:
    int messages = 0;
    std::vector<remote::FileView> look(const RemotePath& folder,
                                       std::span<const remote::FileQuery> files) override {
      ++messages;
      return FakeSession::look(folder, files);
    }
    void put_files(const RemotePath& folder, std::span<const remote::NewFile> files) override {
      ++messages;
      EXPECT_EQ(files.back().name, "manifest.json");
      FakeSession::put_files(folder, files);
    }
    void upload(const RemotePath&, uint64_t, uint64_t, const remote::Source&,
                std::stop_token) override {
      ADD_FAILURE() << "streamed a small file";
    }
  } counting;
  push(counting, dir_ / "model", manifest_of(files_), to_, {});
  EXPECT_EQ(counting.messages, 2);
  EXPECT_TRUE(remote_files(counting, to_.str()) == with_manifest(files_));
  push(counting, dir_ / "model", manifest_of(files_), to_, {});
  EXPECT_EQ(counting.messages, 3);
}

TEST_P(PushToFacility, LargeFilesUseTheBulkSession) {
  test::FaultySession mover(facility_);
  push({link_, mover}, dir_ / "model", manifest_of(files_, kChunk), to_, {});
  expect_complete();
  EXPECT_LT(link_.bytes_passed(), 3000u);
  EXPECT_EQ(mover.bytes_passed(), kSize);
  EXPECT_EQ(mover.calls("sync"), 1) << "the data is in the memory of the transfer host";
  EXPECT_EQ(mover.calls("run") + mover.calls("make_dirs") + mover.calls("list"), 0);
}

INSTANTIATE_TEST_SUITE_P(Plain, PushToFacility, testing::Values(false));

// The local session makes real hard links.
// Both models have the damaged file.
TEST(PushCopies, ARepairDoesNotTakeTheDamagedFileOfAnotherModel) {
  test::TempDir dir;
  const auto local = remote::make_local_session();
  const fs::path models = fs::canonical(dir.path()) / "models";
  const RemotePath first((models / "aa").string()), second((models / "bb").string());
  Files files = {{"model-1", noise(9'000'000, 1)}, {"model-2", noise(10'000'000, 2)}};
  put_local(dir / "first", files);
  push(*local, dir / "first", manifest_of(files), first, {});
  files["model-2"] = noise(10'000'000, 3);
  put_local(dir / "second", files);
  push(*local, dir / "second", manifest_of(files), second, {});
  ASSERT_EQ(fs::hard_link_count(models / "bb/model-1"), 2u);
  std::fstream(models / "bb/model-1", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(5'000'000)
      .put('\1');
  ASSERT_NE(read_file(models / "bb/model-1", 1u << 30), files["model-1"]);
  repair(*local, dir / "second", manifest_of(files), second, {});
  EXPECT_TRUE(local_files(models / "bb") == with_manifest(files));
}

TEST(PushCopies, LinksFilesOfAnotherModelInsteadOfSendingThem) {
  test::TempDir dir;
  const auto local = remote::make_local_session();
  const fs::path models = fs::canonical(dir.path()) / "models";
  Files files = {{"model-0", noise(5'000'000, 4)},
                 {"model-1", noise(9'000'000, 1)},
                 {"model-2", noise(10'000'000, 2)},
                 {"t", "t"}};
  put_local(dir / "first", files);
  push(*local, dir / "first", manifest_of(files), RemotePath((models / "aa").string()), {});
  files["model-2"] = noise(10'000'000, 3);
  Files renamed = {{"model-0", files["model-0"]},
                   {"other-name", files["model-1"]},
                   {"model-2", files["model-2"]}};
  put_local(dir / "second", renamed);
  EXPECT_EQ(
      push(*local, dir / "second", manifest_of(renamed), RemotePath((models / "bb").string()), {})
          .moved_bytes,
      10'000'000u);
  EXPECT_TRUE(local_files(models / "bb") == with_manifest(renamed));
  EXPECT_EQ(fs::hard_link_count(models / "bb/model-0"), 2u);
  EXPECT_EQ(fs::hard_link_count(models / "bb/other-name"), 2u);
  EXPECT_EQ(fs::hard_link_count(models / "bb/model-2"), 1u);

  // A folder without manifest.json and a file of the wrong size are not linked.
  fs::remove(models / "aa/manifest.json");
  fs::resize_file(models / "bb/other-name", 1000);
  put_local(dir / "third", renamed);
  EXPECT_EQ(
      push(*local, dir / "third", manifest_of(renamed), RemotePath((models / "cc").string()), {})
          .moved_bytes,
      9'000'000u);
  EXPECT_TRUE(local_files(models / "cc") == with_manifest(renamed));
}

TEST(PushCopies, SendsTheFilesThatTheFacilityCannotLink) {
  test::TempDir dir;
  const Files files = {{"model", noise(17'000'000, 1)}};
  put_local(dir / "model", files);
  test::FakeSession without_ln, without_shell;
  without_shell.on_run = [](const auto&, const auto&) -> remote::CommandResult {
    throw Error(ErrorKind::kUnsupported, "only transfers files");
  };
  for (test::FakeSession* facility : {&without_ln, &without_shell})
    for (const char* folder : {"/models/aa", "/models/bb"}) {
      push(*facility, dir / "model", manifest_of(files), RemotePath(folder), {});
      EXPECT_TRUE(remote_files(*facility, folder) == with_manifest(files)) << folder;
    }
}

}  // namespace
}  // namespace xffl::transfer
