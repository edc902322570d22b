#include "xffl/pack/packed_model.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "files.h"
#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "support/thrown.h"

namespace {

thread_local bool has_hard_links = true;
thread_local std::string_view stale;  // the end of a path whose status the file server denies

int status_of(const char* path, struct stat* info, int flags) {
  if (stale.empty() || !std::string_view(path).ends_with(stale))
    return ::fstatat(AT_FDCWD, path, info, flags);
  errno = ESTALE;
  return -1;
}

}  // namespace

extern "C" int link(const char* from, const char* to) {
  if (has_hard_links) return ::linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
  errno = EXDEV;
  return -1;
}

extern "C" int stat(const char* path, struct stat* info) { return status_of(path, info, 0); }
extern "C" int lstat(const char* path, struct stat* info) {
  return status_of(path, info, AT_SYMLINK_NOFOLLOW);
}

namespace xffl::pack {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

// Two models of consecutive rounds with a configuration and two shards; training changed one shard.
class PackedModels : public ::testing::Test {
 protected:
  PackedModels() {
    const Weights trained = weights(300'000, 2e-4f);
    const std::string frozen = weights(100'000, 0, 5).before;
    for (const auto& [name, bytes] : {std::pair("old", trained.before), {"new", trained.after}}) {
      fs::create_directory(dir_ / name);
      write_bytes(dir_.path() / name / "model-00001-of-00002.safetensors", bytes);
      write_bytes(dir_.path() / name / "model-00002-of-00002.safetensors", frozen);
      write_bytes(dir_.path() / name / "config.json", "{}");
    }
    write_bytes(dir_.path() / "new/tokenizer.json", "new content");
    packed_.reference_sha256 = checkpoint::write_manifest(dir_ / "old").root_sha256();
    sha256_ = checkpoint::write_manifest(dir_ / "new").root_sha256();
    const auto manifest = pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 0.8, 2);
    packed_.path = (dir_ / "packed").string();
    packed_.sha256 = manifest.value().root_sha256();
    packed_.reference_path = (dir_ / "old").string();
    packed_.failure_path = (dir_ / "failure").string();
  }

  Unpacked unpack() { return unpack_model(packed_, dir_ / "made", sha256_, dir_ / "tmp", 2); }
  ErrorKind unpack_error() {
    const ErrorKind kind = test::kind_of([&] { unpack(); });
    EXPECT_FALSE(fs::exists(dir_ / "made"));
    return kind;
  }
  job::JobSpec spec() const {
    job::JobSpec spec;
    spec.base_model_path = (dir_ / "made").string();
    spec.base_model_sha256 = sha256_;
    spec.base_model_packed = packed_;
    spec.report_path = (dir_ / "report.json").string();
    return spec;
  }

  const TempDir dir_;
  job::PackedModel packed_;
  std::string sha256_;
};

TEST_F(PackedModels, AreUnpackedToTheSameModel) {
  const Unpacked made = unpack();
  EXPECT_LT(3 * made.packed_bytes, 2 * made.model_bytes);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(dir_ / "made");
  EXPECT_EQ(manifest.root_sha256(), sha256_);
  checkpoint::verify_folder(dir_ / "made", manifest);
  EXPECT_FALSE(fs::exists(dir_ / "tmp"));
  EXPECT_EQ(read_bytes(dir_ / "made/manifest.json"), read_bytes(dir_ / "new/manifest.json"));
}

// After a power loss a file of the right size would count as complete.
TEST_F(PackedModels, UnpackedFilesAreSynced) {
  test::synced_sizes.clear();
  unpack();
  EXPECT_TRUE(test::is_synced(dir_ / "made/model-00001-of-00002.safetensors"));
}

TEST_F(PackedModels, PackedFilesAreSynced) {
  for (const char* name : {"tokenizer.json", "model-00001-of-00002.safetensors.xpk"})
    EXPECT_TRUE(test::is_synced(dir_ / "packed" / name));
}

TEST_F(PackedModels, AFileThatCannotBeLinkedIsCopiedAndSynced) {
  has_hard_links = false;
  test::synced_sizes.clear();
  unpack();
  has_hard_links = true;
  // The first file comes from the packed folder, the others from the reference.
  for (const char* name : {"tokenizer.json", "config.json", "model-00002-of-00002.safetensors"}) {
    EXPECT_EQ(fs::hard_link_count(dir_ / "made" / name), 1u) << name;
    EXPECT_TRUE(test::is_synced(dir_ / "made" / name));
  }
  checkpoint::verify_folder(dir_ / "made", checkpoint::read_manifest(dir_ / "made"));
}

TEST_F(PackedModels, AShardOfAnotherSizeIsUnpackedWithoutItsReference) {
  write_bytes(dir_ / "old/model-00001-of-00002.safetensors", "shorter");
  packed_.reference_sha256 = checkpoint::write_manifest(dir_ / "old").root_sha256();
  const auto manifest = pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 1.0, 2);
  packed_.sha256 = manifest.value().root_sha256();
  unpack();
  checkpoint::verify_folder(dir_ / "made", checkpoint::read_manifest(dir_ / "made"));
}

TEST_F(PackedModels, OmitFilesThatTheReferenceHolds) {
  EXPECT_FALSE(fs::exists(dir_ / "packed/config.json"));
  EXPECT_FALSE(fs::exists(dir_ / "packed/model-00002-of-00002.safetensors.xpk"));
  EXPECT_TRUE(fs::exists(dir_ / "packed/model-00001-of-00002.safetensors.xpk"));
  EXPECT_TRUE(fs::exists(dir_ / "packed/tokenizer.json"));
}

TEST_F(PackedModels, AreNotWrittenForAModelWithOneOfTheirOwnNames) {
  for (const char* name : {"packed.json", "notes.xpk"}) {
    write_bytes(dir_ / "new" / name, "x");
    checkpoint::write_manifest(dir_ / "new");
    EXPECT_FALSE(pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 0.8, 2)) << name;
    fs::remove(dir_ / "new" / name);
  }
}

// Each facility's first job would fail after its time in the queue.
TEST_F(PackedModels, AreNotWrittenForAModelWithADamagedTokenizer) {
  write_bytes(dir_ / "new/tokenizer.json", "bad content");
  EXPECT_EQ(test::kind_of([&] { pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 0.8, 2); }),
            ErrorKind::kRejected);
  EXPECT_FALSE(fs::exists(dir_ / "packed"));
  EXPECT_FALSE(fs::exists(dir_ / "packed.tmp"));
}

TEST_F(PackedModels, AreNotWrittenAboveTheMaximumRatio) {
  EXPECT_FALSE(pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 0.1, 2));
  EXPECT_FALSE(fs::exists(dir_ / "packed")) << "an older packed model would be used instead";
  EXPECT_FALSE(fs::exists(dir_ / "packed.tmp"));
}

TEST_F(PackedModels, TheMaximumRatioBoundsTheSumOfTheFiles) {
  const auto shard = fs::file_size(dir_ / "packed/model-00001-of-00002.safetensors.xpk");
  const auto tokenizer = fs::file_size(dir_ / "packed/tokenizer.json");
  const auto model = static_cast<double>(checkpoint::read_manifest(dir_ / "new").total_bytes());
  const auto fits = [&](uint64_t bytes) {
    const double ratio = (static_cast<double>(bytes) + 0.5) / model;
    return pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", ratio, 2).has_value();
  };
  EXPECT_TRUE(fits(shard + tokenizer));
  EXPECT_FALSE(fits(shard + tokenizer - 1));
}

// RLIMIT_FSIZE stands for a full disk.
TEST_F(PackedModels, LeaveNoFilesOnAFullDisk) {
  struct rlimit usual {};
  ::getrlimit(RLIMIT_FSIZE, &usual);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 100'000, usual.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &small);
  const ErrorKind kind =
      test::kind_of([&] { pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 0.8, 2); });
  ::setrlimit(RLIMIT_FSIZE, &usual);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_FALSE(fs::exists(dir_ / "packed.tmp"));
  EXPECT_FALSE(fs::exists(dir_ / "packed")) << "it may be of another model";
}

TEST_F(PackedModels, LeaveNoFilesAfterAStopRequest) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(test::kind_of([&] {
              pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 0.8, 2, stop.get_token());
            }),
            ErrorKind::kCancelled);
  EXPECT_FALSE(fs::exists(dir_ / "packed.tmp"));
}

// The required space is the maximum size of the packed folder.
TEST_F(PackedModels, RequireDiskSpaceFirst) {
  const std::string message = test::message_of(
      ErrorKind::kIo, [&] { pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 1e12, 2); });
  EXPECT_NE(message.find("not enough space"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(dir_ / "packed.tmp"));
}

TEST_F(PackedModels, AreReplacedAfterAnInterruption) {
  fs::create_directory(dir_ / "packed.tmp");
  write_bytes(dir_ / "packed.tmp/half", "written");
  fs::create_directory(dir_ / "tmp");
  write_bytes(dir_ / "tmp/half", "written");
  EXPECT_EQ(pack_model(dir_ / "new", dir_ / "old", dir_ / "packed", 0.8, 1)->root_sha256(),
            packed_.sha256);
  // The remains of an interrupted push of the whole model.
  fs::create_directory(dir_ / "made");
  write_bytes(dir_ / "made/.model.safetensors.part", "half");
  unpack();
  checkpoint::verify_folder(dir_ / "made", checkpoint::read_manifest(dir_ / "made"));
}

TEST_F(PackedModels, AreRejectedWithAnotherHash) {
  packed_.sha256 = std::string(64, 'a');
  EXPECT_EQ(unpack_error(), ErrorKind::kRejected);
}

TEST_F(PackedModels, AreRejectedForAnotherModel) {
  sha256_ = std::string(64, 'a');
  EXPECT_EQ(unpack_error(), ErrorKind::kRejected);
}

TEST_F(PackedModels, AreRejectedWithAnotherReference) {
  packed_.reference_sha256 = std::string(64, 'a');
  EXPECT_EQ(unpack_error(), ErrorKind::kRejected);
}

TEST_F(PackedModels, AreRejectedWithoutTheReference) {
  fs::remove_all(dir_ / "old");
  EXPECT_EQ(unpack_error(), ErrorKind::kNotFound);
}

TEST_F(PackedModels, CheckTheHashesOfFilesFromTheReference) {
  write_bytes(dir_ / "old/config.json", "[]");
  EXPECT_EQ(unpack_error(), ErrorKind::kCorrupt);
}

TEST_F(PackedModels, AreRejectedWithADamagedReference) {
  std::string bytes = read_bytes(dir_ / "old/model-00001-of-00002.safetensors");
  bytes[1000] = static_cast<char>(bytes[1000] ^ 4);
  write_bytes(dir_ / "old/model-00001-of-00002.safetensors", bytes);
  EXPECT_EQ(unpack_error(), ErrorKind::kCorrupt);
}

TEST_F(PackedModels, AreUnpackedOncePerJob) {
  EXPECT_TRUE(provide_base_model(spec()));
  fs::remove_all(dir_ / "old");
  EXPECT_FALSE(provide_base_model(spec())) << "the model is already complete";
  job::JobSpec whole = spec();
  whole.base_model_packed.reset();
  EXPECT_FALSE(provide_base_model(whole));
}

// Two starts of a job may unpack at once, and the faster one already reads its model.
TEST_F(PackedModels, TheCompleteModelOfAnotherStartStays) {
  unpack();
  write_bytes(dir_ / "made/in-use", "x");
  unpack();
  EXPECT_TRUE(fs::exists(dir_ / "made/in-use"));
  EXPECT_FALSE(fs::exists(dir_ / "tmp"));
}

TEST_F(PackedModels, ACompleteModelStaysWhileItsFileServerFails) {
  unpack();
  write_bytes(dir_ / "made/in-use", "x");
  for (const char* name : {"/made/manifest.json", "/made/config.json"}) {
    stale = name;
    const ErrorKind kind = test::kind_of([&] { provide_base_model(spec()); });
    stale = {};
    EXPECT_EQ(kind, ErrorKind::kIo) << name;
    EXPECT_TRUE(fs::exists(dir_ / "made/in-use")) << name;
  }
}

// The site's purge may remove a file of the model, and a full disk may cut a file short.
TEST_F(PackedModels, AnIncompleteModelIsUnpackedAgain) {
  EXPECT_TRUE(provide_base_model(spec()));
  const fs::path model = spec().base_model_path;
  const checkpoint::Manifest manifest = checkpoint::read_manifest(model);
  fs::remove(model / manifest.files.front().name);
  EXPECT_TRUE(provide_base_model(spec()));
  fs::resize_file(model / "model-00001-of-00002.safetensors", 100);
  EXPECT_TRUE(provide_base_model(spec()));
  EXPECT_NO_THROW(checkpoint::verify_folder(model, manifest));
}

TEST_F(PackedModels, AJobWritesTheReasonOfAFailedUnpacking) {
  write_bytes(dir_ / "old/config.json", "[]");
  const std::string message =
      test::message_of(ErrorKind::kCorrupt, [&] { provide_base_model(spec()); });
  EXPECT_EQ(read_bytes(dir_ / "failure"), message + "\n");
  EXPECT_FALSE(fs::exists(dir_ / "model.tmp-a1")) << "each failed start would fill the disk";
}

TEST_F(PackedModels, ALaterStartOfAJobRemovesTheReasonOfAnEarlierFailure) {
  write_bytes(dir_ / "failure", "no space left\n");
  EXPECT_TRUE(provide_base_model(spec()));
  EXPECT_FALSE(fs::exists(dir_ / "failure"));
}

}  // namespace
}  // namespace xffl::pack
