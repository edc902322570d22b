#include "known_hosts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "wire.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::remote {
namespace {

PublicKey key_of(const std::string& type, const std::string& what) {
  return {type, WireWriter().string(type).string(what).bytes()};
}

class KnownHosts : public testing::Test {
 protected:
  test::TempDir dir_;
  const std::filesystem::path file_ = dir_ / "sub/known_hosts";
  const SshHost login_{"login.site", 22}, other_{"login.site", 2222};
  const PublicKey one_ = key_of("ssh-ed25519", "1"), two_ = key_of("ssh-rsa", "2");
};

TEST_F(KnownHosts, AnEmptyFilePinsNoKey) { EXPECT_TRUE(pinned_keys(file_, login_).empty()); }

TEST_F(KnownHosts, AKeyIsPinnedToAHostAndItsPort) {
  pin_key(file_, login_, one_);
  pin_key(file_, other_, two_);
  EXPECT_EQ(pinned_keys(file_, login_), std::vector{one_});
  EXPECT_EQ(pinned_keys(file_, other_), std::vector{two_});
  struct stat info {};
  ASSERT_EQ(::stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(KnownHosts, ANewKeyReplacesOnlyTheKeysOfItsHost) {
  make_dirs(file_.parent_path());
  write_file_atomic(file_, "# by hand\nlogin.site,login2.site " + one_.line() + " comment\n" +
                               "login.site " + two_.line() + "\n@cert-authority login.site " +
                               one_.line() + "\n");
  EXPECT_EQ(pinned_keys(file_, login_), (std::vector{one_, two_}));
  const PublicKey fresh = key_of("ssh-ed25519", "3");
  pin_key(file_, login_, fresh);
  EXPECT_EQ(pinned_keys(file_, login_), std::vector{fresh});
  EXPECT_EQ(pinned_keys(file_, {"login2.site", 22}), std::vector{one_});
  EXPECT_EQ(read_file(file_, 10'000).find("# by hand\n"), 0u);
}

TEST_F(KnownHosts, ANewKeyKeepsTheOtherHostsOfALineWithANameLikeAMarker) {
  for (const char* name : {"@marker", "#comment"}) {
    make_dirs(file_.parent_path());
    write_file_atomic(file_,
                      "login.site," + std::string(name) + ",login2.site " + one_.line() + "\n");
    pin_key(file_, login_, two_);
    EXPECT_EQ(pinned_keys(file_, login_), std::vector{two_});
    EXPECT_EQ(pinned_keys(file_, {"login2.site", 22}), std::vector{one_}) << name;
  }
}

// One name of several nodes.
TEST_F(KnownHosts, AFurtherKeyKeepsTheOthers) {
  pin_also(file_, login_, one_);
  pin_also(file_, other_, two_);
  pin_also(file_, login_, two_);
  EXPECT_EQ(pinned_keys(file_, login_), (std::vector{one_, two_}));
  EXPECT_EQ(pinned_keys(file_, other_), std::vector{two_});
  struct stat info {};
  ASSERT_EQ(::stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// A link to itself stands for a file server that does not answer.
TEST_F(KnownHosts, NamesAFileThatCannotBeExamined) {
  make_dirs(file_.parent_path());
  std::filesystem::create_symlink(file_.filename(), file_);
  const std::string message = test::message_of(ErrorKind::kIo, [&] { pinned_keys(file_, login_); });
  EXPECT_NE(message.find(file_.string()), std::string::npos) << message;
}

TEST_F(KnownHosts, RejectsADamagedLine) {
  make_dirs(file_.parent_path());
  write_file_atomic(file_, "login.site ssh-ed25519 AAAA\n");
  EXPECT_THROW(pinned_keys(file_, login_), Error);
  EXPECT_TRUE(pinned_keys(file_, other_).empty());
}

}  // namespace
}  // namespace xffl::remote
