// A login shell with profiles that print, read, and set up the PATH, as supercomputers have them.
#include "xffl/remote/login_shell.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "support/fake_session.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"

namespace xffl::remote {
namespace {

class LoginShell : public testing::Test {
 protected:
  LoginShell() {
    make_dirs(dir_ / "slurm");
    write_file_atomic(dir_ / "slurm/x-sbatch",
                      "#!/bin/sh\necho \"id $1\"; echo why >&2; cat; exit 3\n");
    ::chmod((dir_ / "slurm/x-sbatch").c_str(), 0755);
    write_file_atomic(dir_ / ".bash_profile",
                      "echo '*** Welcome ***'\necho 'module: not found' >&2\n"
                      "read -r line\nPATH=$PATH:~/slurm\n");
    ::setenv("HOME", dir_.path().c_str(), 1);
  }
  ~LoginShell() override {
    home_.empty() ? ::unsetenv("HOME") : ::setenv("HOME", home_.c_str(), 1);
  }

  test::TempDir dir_;
  const std::string home_ = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  std::shared_ptr<Session> plain_ = make_local_session();
  std::shared_ptr<Session> session_ = make_login_shell_session(plain_);
};

TEST_F(LoginShell, FindsTheProgramsOfTheProfile) {
  const std::chrono::seconds patience(10);
  EXPECT_EQ(plain_->run({"env", "x-sbatch", "x"}, "", patience, {}).exit_code, 127);
  const CommandResult result =
      session_->run({"env", "x-sbatch", "a '$b"}, "script\n", patience, {});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "id a '$b\nscript\n");  // without the welcome, with the whole input
  EXPECT_EQ(result.err, "why\n");
}

TEST_F(LoginShell, AStopRequestEndsACommand) {
  std::stop_source stop;
  stop.request_stop();
  const auto sleep = [&] {
    session_->run({"sleep", "2"}, "", std::chrono::seconds(10), stop.get_token());
  };
  EXPECT_EQ(test::kind_of(sleep), ErrorKind::kCancelled);
}

TEST_F(LoginShell, LeavesFilesToTheSession) {
  const RemotePath file((dir_ / "file").string());
  write_text_atomic(*session_, file, "text");
  EXPECT_EQ(read_text(*plain_, file, 100), "text");
  const auto far = std::make_shared<test::FakeSession>();
  far->hashes = true;
  far->free = 77;
  far->put("/file", "abcd");
  const auto session = make_login_shell_session(far);
  EXPECT_EQ(session->sha256(RemotePath("/file"), 1, 2), sha256_hex("bc"));
  EXPECT_TRUE(session->block_hashes(RemotePath("/file"), 0, 4, 2));
  EXPECT_EQ(session->free_bytes(RemotePath("/")), 77u);
  EXPECT_EQ(test::kind_of([&] { session->sync(RemotePath("/none")); }), ErrorKind::kNotFound);
}

}  // namespace
}  // namespace xffl::remote
