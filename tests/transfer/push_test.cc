#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "folders.h"

namespace xffl::transfer {
namespace {

using testing::HasSubstr;

class Push : public testing::Test {
 protected:
  Files files_ = sample_files();
  test::FakeSession facility_;
  test::FaultySession link_{facility_};
  test::TempDir dir_;
  const RemotePath to_{"/scratch/r0001/a1/in"};

  void SetUp() override {
    facility_.hashes = true;
    put_local(dir_ / "model", files_);
  }

  static constexpr uint64_t kChunk = 1u << 20;

  Result push_now(std::stop_token stop = {}, const OnProgress& on_progress = {}) {
    return push(link_, dir_ / "model", manifest_of(files_, kChunk), to_, stop, on_progress);
  }
  void expect_complete() {
    EXPECT_TRUE(remote_files(facility_, to_.str()) == with_manifest(files_, kChunk));
  }
  bool claims_to_be_complete() { return facility_.stat(to_ / "manifest.json").has_value(); }
  void change(const std::string& name, const std::string& bytes) {
    files_[name] = bytes;
    write_file_atomic(dir_ / "model" / name, bytes);
  }
};

TEST_F(Push, UploadsAFolder) {
  EXPECT_EQ(push_now().moved_bytes, total(files_));
  expect_complete();
}

// Remembers the files that are on the disk.
class SyncedSession : public test::FakeSession {
 public:
  void sync(const RemotePath& path) override {
    FakeSession::sync(path);
    synced_.insert(path.str());
  }
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    synced_.erase(path.str());
    FakeSession::write(path, offset, bytes);
  }
  void rename(const RemotePath& from, const RemotePath& to) override {
    if (to.filename() == "model.safetensors") renamed_when_synced += synced_.contains(from.str());
    FakeSession::rename(from, to);
  }
  int renamed_when_synced = 0;

 private:
  std::set<std::string> synced_;
};

// A crash of the file server must not leave a complete name with missing bytes.
TEST_F(Push, ALargeFileIsOnTheDiskBeforeItHasItsName) {
  SyncedSession facility;
  push(facility, dir_ / "model", manifest_of(files_, kChunk), to_, {});
  EXPECT_EQ(facility.renamed_when_synced, 1);
}

TEST_F(Push, SendsNothingWhenComplete) {
  push_now();
  EXPECT_EQ(push_now().moved_bytes, 0u);
  EXPECT_EQ(link_.calls("rename"), 5);  // three files, the plan, the plan to its final name
  expect_complete();
}

TEST_F(Push, SendsOnlyChangedFiles) {
  push_now();
  change("config.json", "{ }\n");
  EXPECT_EQ(push_now().moved_bytes, 4u);
  expect_complete();
}

TEST_F(Push, RemovesFilesOfAnEarlierManifest) {
  push_now();
  files_.erase("empty");
  EXPECT_EQ(push_now().moved_bytes, 0u);
  expect_complete();
}

TEST_F(Push, DoesNotTrustForeignFiles) {
  facility_.put(to_.str() + "/config.json", "[]\n");  // of the same size
  facility_.put(to_.str() + "/.model.safetensors.part", noise(9'000'000, 99));
  facility_.put(to_.str() + "/notes", "foreign");
  EXPECT_EQ(push_now().moved_bytes, total(files_));
  EXPECT_EQ(facility_.content(to_.str() + "/notes"), "foreign");
  facility_.remove_tree(to_ / "notes");
  expect_complete();
}

TEST_F(Push, SendsFilesOfTheWrongSizeAgain) {
  push_now();
  facility_.put(to_.str() + "/config.json", "{");
  facility_.remove_tree(to_ / "empty");
  EXPECT_EQ(push_now().moved_bytes, 3u);
  expect_complete();
}

TEST_F(Push, SendsAllFilesWhenTheManifestIsDamaged) {
  push_now();
  facility_.put(to_.str() + "/manifest.json", "{\"version\": 1,");
  EXPECT_EQ(push_now().moved_bytes, total(files_));
  expect_complete();
}

// The coordinator has lost its run: another one works on the folder, or its job reads it.
TEST_F(Push, ChangesNothingWhenItsCallerRefusesTheFirstChange) {
  const auto expect_refusal = [&](bool compares, const std::string& state) {
    Endpoint endpoint(link_);
    endpoint.before_change = [] { throw Error(ErrorKind::kBusy, "another has the run"); };
    const Files before = remote_files(facility_, to_.str());
    const checkpoint::Manifest manifest = manifest_of(files_, kChunk);
    EXPECT_EQ(test::kind_of([&] {
                if (compares)
                  repair(endpoint, dir_ / "model", manifest, to_, {});
                else
                  push(endpoint, dir_ / "model", manifest, to_, {});
              }),
              ErrorKind::kBusy)
        << state;
    EXPECT_TRUE(remote_files(facility_, to_.str()) == before) << state;
  };
  facility_.make_dirs(to_);
  expect_refusal(false, "an empty folder");
  link_.drop_after(6'000'000);
  error_of([&] { push_now(); });
  link_.reconnect();
  expect_refusal(false, "the plan and a part of a file");
  push_now();
  expect_refusal(true, "a complete folder");
  change("config.json", "{ }\n");
  expect_refusal(false, "an earlier model");
}

// Names the changes that no check has preceded. The smaller changes within a change need no check.
class CheckedSession : public test::FakeSession {
 public:
  bool is_checked = false;
  std::vector<std::string> unchecked;

  void upload(const RemotePath& path, uint64_t offset, uint64_t length,
              const remote::Source& source, std::stop_token stop) override {
    change("upload", [&] { FakeSession::upload(path, offset, length, source, stop); });
  }
  void put_files(const RemotePath& folder, std::span<const remote::NewFile> files) override {
    change("put_files", [&] { FakeSession::put_files(folder, files); });
  }
  void rename(const RemotePath& from, const RemotePath& to) override {
    change("rename " + from.str(), [&] { FakeSession::rename(from, to); });
  }
  void make_dirs(const RemotePath& folder) override {
    change("make_dirs", [&] { FakeSession::make_dirs(folder); });
  }
  using FakeSession::remove_tree;
  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    change("remove_tree " + path.str(), [&] { FakeSession::remove_tree(path, stop); });
  }

 private:
  void change(const std::string& name, const std::function<void()>& call) {
    if (depth_ == 0 && !std::exchange(is_checked, false)) unchecked.push_back(name);
    ++depth_;
    call();
    --depth_;
  }
  int depth_ = 0;
};

// Another coordinator may take the run while a large file travels.
TEST_F(Push, ItsCallerAllowsEachChange) {
  CheckedSession facility;
  facility.hashes = true;
  Endpoint endpoint(facility);
  endpoint.before_change = [&] { facility.is_checked = true; };
  const auto expect_checks = [&](bool compares, const std::string& state) {
    facility.unchecked.clear();
    facility.is_checked = false;
    const checkpoint::Manifest manifest = manifest_of(files_, kChunk);
    if (compares)
      repair(endpoint, dir_ / "model", manifest, to_, {});
    else
      push(endpoint, dir_ / "model", manifest, to_, {});
    EXPECT_EQ(facility.unchecked, std::vector<std::string>()) << state;
    EXPECT_TRUE(remote_files(facility, to_.str()) == with_manifest(files_, kChunk)) << state;
  };
  const std::string folder = to_.str();
  expect_checks(false, "no folder");
  facility.put(folder + "/notes", "foreign");
  expect_checks(true, "a complete folder with a foreign file");
  facility.put(folder + "/config.json", "{");
  expect_checks(false, "a file of the wrong size");
  change("model.safetensors", noise(9'000'001, 8));
  expect_checks(false, "an earlier model");
  facility.put(folder + "/manifest.json", "{\"version\": 1,");
  expect_checks(false, "a damaged manifest");
  facility.FakeSession::rename(to_ / "manifest.json", to_ / ".manifest.json.part");
  facility.remove_tree(to_ / "model.safetensors");
  facility.put_other(folder + "/.model.safetensors.part");
  expect_checks(false, "the plan and a link in the place of the part file");
  facility.FakeSession::rename(to_ / "manifest.json", to_ / ".manifest.json.part");
  change("model.safetensors", noise(17'000'000, 9));
  expect_checks(false, "the plan of another model");
}

// The files fill three messages; the names of files and part files fill two queries.
TEST_F(Push, SendsManySmallFiles) {
  files_.clear();
  for (int i = 0; i < 150; ++i)
    files_["part-" + std::to_string(1000 + i)] = noise(5, static_cast<uint64_t>(i));
  fs::remove_all(dir_ / "model");
  put_local(dir_ / "model", files_);
  EXPECT_EQ(push_now().moved_bytes, total(files_));
  expect_complete();
  facility_.remove_tree(to_ / "part-1149");
  EXPECT_EQ(push_now().moved_bytes, 5u) << "the file of the second query is missing";
  expect_complete();
}

class PushResumes : public Push, public testing::WithParamInterface<uint64_t> {};

TEST_P(PushResumes, AfterDrops) {
  int calls = 0;
  for (bool done = false; !done && calls < 1000; ++calls) {
    link_.drop_after(GetParam());
    try {
      push_now();
      done = true;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
      EXPECT_FALSE(claims_to_be_complete());
    }
  }
  expect_complete();
  EXPECT_GT(calls, 1);
  // Each drop costs the chunk in flight.
  EXPECT_LE(facility_.bytes_written, total(files_) + static_cast<uint64_t>(calls) * kChunk + 2000u);
}

INSTANTIATE_TEST_SUITE_P(Offsets, PushResumes,
                         testing::Values(1'200'001, 5'000'003, 6'000'000, 8'999'999));

TEST_F(Push, ADamagedEndOfThePartFileIsSentAgain) {
  link_.drop_after(6'000'000);
  error_of([&] { push_now(); });
  link_.reconnect();
  const std::string part = to_.str() + "/.model.safetensors.part";
  std::string bytes = facility_.content(part);
  ASSERT_GT(bytes.size(), 5'000'000u);
  bytes.back() ^= 1;
  facility_.put(part, bytes);
  push_now();
  expect_complete();
}

TEST_F(Push, APartFileLongerThanTheFileIsSentAgain) {
  link_.drop_after(6'000'000);
  error_of([&] { push_now(); });
  link_.reconnect();
  facility_.put(to_.str() + "/.model.safetensors.part", files_["model.safetensors"] + "more");
  push_now();
  expect_complete();
}

// A write through the link would reach a file outside the folder.
TEST_F(Push, ReplacesALinkInThePlaceOfAFileOrPartFile) {
  link_.drop_after(6'000'000);
  error_of([&] { push_now(); });
  link_.reconnect();
  facility_.put_other(to_.str() + "/.model.safetensors.part");
  push_now();
  expect_complete();
  facility_.put_other(to_.str() + "/empty");  // of the same size
  push_now();
  expect_complete();
}

TEST_F(Push, DoesNotContinueAPartFileOfAnotherModel) {
  link_.drop_after(6'000'000);
  error_of([&] { push_now(); });
  link_.reconnect();
  change("model.safetensors", noise(9'000'001, 8));
  push_now();
  expect_complete();
}

TEST_F(Push, AnInterruptedChangeOfModelsIsIncomplete) {
  push_now();
  const std::string old_model = files_["model.safetensors"];
  change("model.safetensors", noise(9'000'001, 8));
  link_.drop_after(6'000'000);
  error_of([&] { push_now(); });
  EXPECT_FALSE(claims_to_be_complete());
  link_.reconnect();
  change("model.safetensors", old_model);  // the part file of the new model must not be continued
  push_now();
  expect_complete();
}

TEST_F(Push, SurvivesEveryLostReply) {
  int num_lost = 0;
  for (const char* operation :
       {"make_dirs", "stat", "read", "write", "sync", "rename", "remove_tree"})
    for (int nth = 1; nth <= 6; ++nth) {
      facility_.remove_tree(RemotePath("/scratch"));
      link_.lose_reply(operation, nth);
      try {
        push_now();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kRemote);
        ++num_lost;
        link_.reconnect();
        push_now();
      }
      link_.reconnect();
      expect_complete();
    }
  EXPECT_GT(num_lost, 20);
}

TEST_F(Push, RejectsALocalFileThatDiffersFromTheManifest) {
  const checkpoint::Manifest manifest = manifest_of(files_, kChunk);
  const auto expect_rejected = [&](const std::string& text) {
    const Error error = error_of([&] { push(link_, dir_ / "model", manifest, to_, {}); });
    EXPECT_EQ(error.kind(), ErrorKind::kRejected) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
    EXPECT_FALSE(claims_to_be_complete());
    EXPECT_FALSE(facility_.stat(to_ / "model.safetensors"));
  };
  std::string bytes = files_["model.safetensors"];
  bytes[5'000'000] ^= 1;
  write_file_atomic(dir_ / "model/model.safetensors", bytes);
  expect_rejected("model.safetensors is damaged");
  EXPECT_FALSE(facility_.stat(to_ / ".model.safetensors.part"));
  write_file_atomic(dir_ / "model/model.safetensors", bytes + "x");
  expect_rejected("expected 9000001 bytes, found 9000002");
  fs::remove(dir_ / "model/model.safetensors");
  expect_rejected("does not exist");
}

TEST_F(Push, StopsAndContinues) {
  std::stop_source stop;
  const Error error = error_of([&] {
    push_now(stop.get_token(), [&](const Progress& progress) {
      if (progress.done_bytes > 4u << 20) stop.request_stop();
    });
  });
  EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  EXPECT_FALSE(claims_to_be_complete());
  EXPECT_LT(push_now().moved_bytes, total(files_));
  expect_complete();
}

TEST_F(Push, ReportsProgress) {
  uint64_t last = 0, expected = total(files_);
  push_now({}, [&](const Progress& progress) {
    EXPECT_GE(progress.done_bytes, last);
    EXPECT_EQ(progress.total_bytes, expected);
    last = progress.done_bytes;
  });
  EXPECT_EQ(last, expected);
}

TEST_F(Push, WorksWithALocalSession) {
  const auto local = remote::make_local_session();
  const fs::path facility = dir_ / "far/in";
  push(*local, dir_ / "model", manifest_of(files_), RemotePath(facility.string()), {});
  EXPECT_TRUE(local_files(facility) == with_manifest(files_));
  checkpoint::verify_folder(facility, checkpoint::read_manifest(facility));
  EXPECT_EQ(push(*local, dir_ / "model", manifest_of(files_), RemotePath(facility.string()), {})
                .moved_bytes,
            0u);
}

}  // namespace
}  // namespace xffl::transfer
