// Deployments of an image, with a stand-in for Apptainer that runs the image's file as a script.
#include "xffl/deploy/deploy_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/faulty_session.h"
#include "support/sshd.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::deploy {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::HasSubstr;

class DeployImage : public testing::Test {
 protected:
  DeployImage() {
    write_file_atomic(dir_ / "apptainer",
                      "#!/bin/sh\n[ \"$1\" = exec ] && exec sh \"$2\" \"$3\"\n");
    fs::permissions(dir_ / "apptainer", fs::perms::owner_all);
    make_image("echo xffl-train 0.1.0 '(torch 2.11.0)'");
  }
  void make_image(const std::string& line, size_t bytes = 3'000'000) {
    std::string text = line + "\nexit\n";
    for (size_t i = 0; text.size() < bytes; ++i) text += std::to_string(i * i);
    write_file_atomic(image(), text + line);
  }
  fs::path image() const { return dir_ / "built.sif"; }
  fs::path there() const { return dir_ / "site/xffl.sif"; }
  ImagePlace place() const {
    return {.file = RemotePath(there().string()),
            .program = (dir_ / "apptainer").string(),
            .trainer = "xffl-train",
            .version = "0.1.0"};
  }
  DeployedImage deploy(remote::Session& session) {
    return deploy_image({session, session}, image(), place(), {});
  }
  std::string linked() const { return fs::read_symlink(there()).string(); }

  test::TempDir dir_;
  std::unique_ptr<remote::Session> session_ = remote::make_local_session();
};

TEST_F(DeployImage, SendsStartsAndPromotes) {
  const DeployedImage done = deploy(*session_);
  EXPECT_FALSE(done.was_there);
  EXPECT_EQ(done.started, "xffl-train 0.1.0 (torch 2.11.0)");
  EXPECT_EQ(linked(), done.file.filename());
  EXPECT_THAT(linked(), testing::MatchesRegex("xffl-[0-9a-f]{8}\\.sif"));
  EXPECT_EQ(read_file(there(), 10 << 20), read_file(image(), 10 << 20));
  EXPECT_FALSE(fs::exists(dir_ / "site/.xffl-staging"));
  const DeployedImage again = deploy(*session_);
  EXPECT_TRUE(again.was_there);
  EXPECT_EQ(again.moved_bytes, 0u);
}

TEST_F(DeployImage, ADamagedImageIsReplaced) {
  const DeployedImage first = deploy(*session_);
  {
    std::fstream file(first.file.str(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2'000'000);
    file.put('y');
  }
  EXPECT_FALSE(deploy(*session_).was_there);
  EXPECT_EQ(read_file(there(), 10 << 20), read_file(image(), 10 << 20));
}

TEST_F(DeployImage, AnImageThatDoesNotStartIsNotPromoted) {
  deploy(*session_);
  const std::string good = linked();
  make_image("echo no libtorch >&2; exit 1");
  const Error error = error_of([&] { deploy(*session_); });
  EXPECT_EQ(error.kind(), ErrorKind::kFailed);
  EXPECT_THAT(error.what(), HasSubstr("does not print 'xffl-train 0.1.0'"));
  EXPECT_THAT(error.what(), HasSubstr("no libtorch"));
  EXPECT_EQ(linked(), good);
}

TEST_F(DeployImage, AnImageOfAnotherReleaseOrProgramIsNotPromoted) {
  deploy(*session_);
  const std::string good = linked();
  for (const char* other : {"xffl-train 0.2.0", "xffl-train 0.1.01", "xffl-tokenize 0.1.0"}) {
    make_image(std::string("echo ") + other);
    const Error error = error_of([&] { deploy(*session_); });
    EXPECT_EQ(error.kind(), ErrorKind::kFailed) << other;
    EXPECT_THAT(error.what(), HasSubstr(other));
    EXPECT_EQ(linked(), good) << other;
  }
}

TEST_F(DeployImage, WithoutApptainerItIsNotStarted) {
  ImagePlace there = place();
  there.program = "apptainer-of-compute-nodes";
  const DeployedImage done = deploy_image({*session_, *session_}, image(), there, {});
  EXPECT_EQ(done.started, "");
  EXPECT_THAT(done.why_not, HasSubstr("is not in the PATH of the log-in node"));
  EXPECT_EQ(linked(), done.file.filename());
}

TEST_F(DeployImage, AnImageForATrainerOfTheUsersOwnIsNotStarted) {
  make_image("exit 1");
  ImagePlace own = place();
  own.trainer.clear();
  const DeployedImage done = deploy_image({*session_, *session_}, image(), own, {});
  EXPECT_EQ(done.started, "");
  EXPECT_THAT(done.why_not, HasSubstr("has a trainer of its own"));
  EXPECT_EQ(linked(), done.file.filename());
}

TEST_F(DeployImage, ALinkThatCannotBeMovedIsAnError) {
  deploy(*session_);
  const std::string good = linked();
  make_dirs(there().parent_path() / ".xffl-link");  // in the way of the new link
  make_image("echo xffl-train 0.1.0");
  const Error error = error_of([&] { deploy(*session_); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr("cannot move the link"));
  EXPECT_EQ(linked(), good);
}

TEST_F(DeployImage, AFileOfOtherOriginStays) {
  make_dirs(there().parent_path());
  write_file_atomic(there(), "mine");
  const Error error = error_of([&] { deploy(*session_); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("is no link that xffl made"));
  EXPECT_EQ(read_file(there(), 100), "mine");
  EXPECT_EQ(error_of([&] {
              deploy_image({*session_, *session_}, dir_ / "no", place(), {});
            }).kind(),
            ErrorKind::kNotFound);
}

TEST_F(DeployImage, ABundleIsRefused) {
  const fs::path bundle = dir_ / "xffl-trainer-0.1.0-x86_64-cpu-1a2b3c4d.tar.gz";
  fs::copy(image(), bundle);
  const Error error = error_of([&] { deploy_image({*session_, *session_}, bundle, place(), {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("`scripts/package.sh image " + bundle.string() + "`"));
  EXPECT_FALSE(fs::exists(there().parent_path()));
}

TEST_F(DeployImage, RemovesItsOwnFilesOnly) {
  deploy(*session_);
  make_image("echo xffl-train 0.1.0");
  deploy(*session_);
  write_file_atomic(dir_ / "site/xffl-notes.sif", "mine");
  write_file_atomic(dir_ / "site/xffl-original.sif", "mine, with as many letters as a hash");
  const std::vector<std::string> foreign = {"mine-0a1b2c3d.sif", "xffl-0a1b2c3d.txt",
                                            "xffl-0a1b2c3d-mine.sif"};
  for (const std::string& name : foreign) write_file_atomic(dir_ / "site" / name, "mine");
  EXPECT_EQ(deployed_images(*session_, place().file).size(), 2u);
  remove_images(*session_, place().file, {});
  EXPECT_FALSE(fs::exists(fs::symlink_status(there())));
  EXPECT_TRUE(deployed_images(*session_, place().file).empty());
  EXPECT_EQ(read_file(dir_ / "site/xffl-notes.sif", 100), "mine");
  EXPECT_TRUE(fs::exists(dir_ / "site/xffl-original.sif"));
  for (const std::string& name : foreign) EXPECT_TRUE(fs::exists(dir_ / "site" / name)) << name;
  fs::create_symlink("xffl-notes.sif", there());
  remove_images(*session_, place().file, {});
  EXPECT_EQ(read_file(there(), 100), "mine") << "a link of the user's";
}

TEST_F(DeployImage, RemovesNoFileInTheLinksPlace) {
  deploy(*session_);
  fs::remove(there());
  write_file_atomic(there(), "mine");
  remove_images(*session_, place().file, {});
  EXPECT_TRUE(deployed_images(*session_, place().file).empty());
  EXPECT_EQ(read_file(there(), 100), "mine");
}

// The link drops at a later byte each time, and replies are lost: the next deployment continues.
TEST_F(DeployImage, ContinuesAfterEachInterruption) {
  make_image("echo xffl-train 0.1.0", 20'000'000);
  test::FaultySession link(*session_);
  uint64_t moved = fs::file_size(image());
  int interruptions = 0;
  for (;; ++interruptions) {
    link.reconnect();
    link.drop_after(9'000'000 + static_cast<uint64_t>(interruptions) * 9'000'000);
    try {
      moved = deploy(link).moved_bytes;
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
      EXPECT_FALSE(fs::exists(fs::symlink_status(there())));
    }
    ASSERT_LT(interruptions, 20);
  }
  EXPECT_GE(interruptions, 1);
  EXPECT_LT(moved, fs::file_size(image())) << "it begins again";
  EXPECT_EQ(read_file(there(), 30 << 20), read_file(image(), 30 << 20));
  make_image("echo xffl-train 0.1.0");
  for (int nth = 1; nth <= 6; ++nth) {
    fs::remove_all(dir_ / "site");
    link.reconnect();
    link.lose_reply("run", nth);
    try {
      deploy(link);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
    }
    link.reconnect();
    deploy(link);
    EXPECT_EQ(read_file(there(), 10 << 20), read_file(image(), 10 << 20)) << nth;
    EXPECT_FALSE(fs::exists(dir_ / "site/.xffl-staging")) << nth;
  }
}

TEST_F(DeployImage, ThroughSsh) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  test::Sshd sshd;
  const auto session = remote::make_ssh_session(sshd.settings());
  EXPECT_FALSE(deploy(*session).was_there);
  EXPECT_TRUE(deploy(*session).was_there);
  EXPECT_EQ(read_file(there(), 10 << 20), read_file(image(), 10 << 20));
}

}  // namespace
}  // namespace xffl::deploy
