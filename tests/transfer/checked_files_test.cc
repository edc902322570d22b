#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "folders.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {
namespace {

TEST(CheckedFiles, ConcurrentCallersCheckAContentOnce) {
  CheckedFiles files;
  std::atomic<int> checks = 0;
  const auto check = [&] { return ++checks > 0; };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([&] { files.once("one", check); });
  }
  EXPECT_EQ(checks, 1);
  files.once("other", check);
  EXPECT_EQ(checks, 2);
}

TEST(CheckedFiles, ChecksAgainAfterAFailureOrAnException) {
  CheckedFiles files;
  files.once("one", [] { return false; });
  const auto reject = []() -> bool { throw Error(ErrorKind::kRejected, "wrong"); };
  EXPECT_THROW(files.once("one", reject), Error);
  bool checked = false;
  files.once("one", [&] { return checked = true; });
  EXPECT_TRUE(checked);
}

TEST(CheckedFiles, AModifiedFileIsCheckedAgain) {
  Files files = sample_files();
  const test::TempDir dir;
  put_local(dir / "model", files);
  test::FakeSession facility;
  CheckedFiles checked;
  const auto push_to = [&](const char* folder) {
    push(facility, dir / "model", manifest_of(sample_files()), RemotePath(folder), {}, {},
         &checked);
  };
  push_to("/scratch/one");
  push_to("/scratch/two");
  files["model.safetensors"][5'000'000] ^= 1;
  put_local(dir / "model", files);
  EXPECT_EQ(error_of([&] { push_to("/scratch/three"); }).kind(), ErrorKind::kRejected);
}

// The noted file differs from its manifest; only hashing would detect it.
TEST(CheckedFiles, ANotedFileIsNotHashedUntilItIsModified) {
  Files files = sample_files();
  const checkpoint::Manifest manifest = manifest_of(files);
  files["model.safetensors"][5'000'000] ^= 1;
  const test::TempDir dir;
  put_local(dir / "model", files);
  test::FakeSession facility;
  const auto push_by = [&](CheckedFiles& checked, const char* to) {
    push(facility, dir / "model", manifest, RemotePath(to), {}, {}, &checked);
  };
  CheckedFiles noted, not_noted;
  noted.note(dir / "model", manifest);
  push_by(noted, "/scratch/one");
  EXPECT_EQ(error_of([&] { push_by(not_noted, "/scratch/two"); }).kind(), ErrorKind::kRejected);
  files["model.safetensors"][6'000'000] ^= 1;
  put_local(dir / "model", files);
  EXPECT_EQ(error_of([&] { push_by(noted, "/scratch/three"); }).kind(), ErrorKind::kRejected);
}

}  // namespace
}  // namespace xffl::transfer
