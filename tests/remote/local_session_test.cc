// Properties of the local session alone; tests/contract holds the common ones.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/remote/session.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {
namespace {

namespace fs = std::filesystem;
using test::kind_of;

class LocalSession : public testing::Test {
 protected:
  test::TempDir dir_;
  std::unique_ptr<Session> session_ = make_local_session();

  RemotePath at(const std::string& name) const { return RemotePath((dir_ / name).string()); }
};

TEST_F(LocalSession, RunsAnArgumentVectorWithoutAShell) {
  const auto result =
      session_->run({"printf", "%s", "$(id) ; 'x'"}, "", std::chrono::seconds(10), {});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "$(id) ; 'x'");
  const auto cat = session_->run({"sh", "-c", "cat; echo no >&2; exit 4"}, "input",
                                 std::chrono::seconds(10), {});
  EXPECT_EQ(cat.exit_code, 4);
  EXPECT_EQ(cat.out, "input");
  EXPECT_EQ(cat.err, "no\n");
}

TEST_F(LocalSession, ATimeoutIsARemoteError) {
  EXPECT_EQ(kind_of([&] {
              session_->run({"sleep", "60"}, "", std::chrono::milliseconds(100), {});
            }),
            ErrorKind::kRemote);
}

TEST_F(LocalSession, AStopRequestEndsACommand) {
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  EXPECT_EQ(kind_of([&] {
              session_->run({"sleep", "60"}, "", std::chrono::seconds(60), stop.get_token());
            }),
            ErrorKind::kCancelled);
}

TEST_F(LocalSession, AStopScopeOutlivesItsCommands) {
  std::stop_source stop;
  const StopScope scope(stop.get_token());
  const auto run = [&] { session_->run({"true"}, "", std::chrono::seconds(10), {}); };
  run();
  stop.request_stop();
  EXPECT_EQ(kind_of(run), ErrorKind::kCancelled);
}

TEST_F(LocalSession, DoesNotFollowALink) {
  write_file_atomic(dir_ / "secret", "secret");
  fs::create_symlink(dir_ / "secret", dir_ / "link");
  ASSERT_TRUE(session_->stat(at("link")));
  EXPECT_EQ(session_->stat(at("link"))->type, FileInfo::Type::kOther);
  std::vector<std::byte> buffer(4);
  EXPECT_EQ(kind_of([&] { session_->read(at("link"), 0, buffer); }), ErrorKind::kIo);
  EXPECT_EQ(kind_of([&] { session_->write(at("link"), 0, buffer); }), ErrorKind::kIo);
  EXPECT_EQ(read_file(dir_ / "secret", 100), "secret");
}

TEST_F(LocalSession, DoesNotBlockOnAFifo) {
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(session_->stat(at("fifo"))->type, FileInfo::Type::kOther);
  std::vector<std::byte> buffer(4);
  EXPECT_EQ(kind_of([&] { session_->read(at("fifo"), 0, buffer); }), ErrorKind::kIo);
  EXPECT_EQ(kind_of([&] { session_->write(at("fifo"), 0, buffer); }), ErrorKind::kIo);
  EXPECT_EQ(kind_of([&] { read_text(*session_, at("fifo"), 10); }), ErrorKind::kCorrupt);
}

// A loop of links in place of a disk that does not answer: the file may be there.
TEST_F(LocalSession, ANameThatCannotBeExaminedIsNotAbsent) {
  write_file_atomic(dir_ / "file", "x");
  fs::create_symlink("loop", dir_ / "loop");
  EXPECT_FALSE(session_->stat(at("file/below")));
  EXPECT_EQ(kind_of([&] { session_->stat(at("loop/below")); }), ErrorKind::kIo);
  EXPECT_EQ(kind_of([&] { session_->remove_tree(at("loop/below")); }), ErrorKind::kIo);
}

TEST_F(LocalSession, RemovesALinkAndKeepsItsTarget) {
  fs::create_directories(dir_ / "kept/sub");
  write_file_atomic(dir_ / "kept/sub/file", "x");
  fs::create_directory(dir_ / "tree");
  fs::create_directory_symlink(dir_ / "kept", dir_ / "tree/link");
  session_->remove_tree(at("tree"));
  EXPECT_FALSE(fs::exists(dir_ / "tree"));
  EXPECT_TRUE(fs::exists(dir_ / "kept/sub/file"));
}

// An interrupted write of a longer text has left its temporary file.
TEST_F(LocalSession, ATextIsWholeAfterAnInterruptedWrite) {
  write_file_atomic(dir_ / "job.json.tmp", "a longer text");
  write_text_atomic(*session_, at("job.json"), "text");
  EXPECT_EQ(read_file(dir_ / "job.json", 100), "text");
  EXPECT_FALSE(fs::exists(dir_ / "job.json.tmp"));
}

// A power loss could otherwise leave a name without its content.
TEST_F(LocalSession, SyncsAFileAndTheFolderOfANewName) {
  test::synced_sizes.clear();
  session_->write(at("new"), 0, std::vector<std::byte>(5));
  session_->sync(at("new"));
  EXPECT_TRUE(test::is_synced(dir_ / "new"));
  session_->rename(at("new"), at("old"));
  EXPECT_TRUE(test::is_synced(dir_.path()));
}

TEST_F(LocalSession, MakesPrivateFilesAndFolders) {
  session_->make_dirs(at("a/b"));
  session_->write(at("a/b/file"), 0, {});
  struct stat info {};
  ASSERT_EQ(::stat((dir_ / "a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat((dir_ / "a/b/file").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(LocalSession, ReportsTheFreeBytesOfItsDisk) {
  const auto free = static_cast<double>(fs::space(dir_.path()).available);
  EXPECT_NEAR(static_cast<double>(session_->free_bytes(at("")).value()), free, free / 2);
}

TEST_F(LocalSession, MakeDirsFailsOverAFile) {
  write_file_atomic(dir_ / "file", "x");
  EXPECT_EQ(kind_of([&] { session_->list(at("file")); }), ErrorKind::kIo);
  EXPECT_EQ(kind_of([&] { session_->make_dirs(at("file/sub")); }), ErrorKind::kIo);
}

}  // namespace
}  // namespace xffl::remote
