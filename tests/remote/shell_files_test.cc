// The scripts in the local shell.
#include "shell_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "support/failing_call.h"
#include "support/fake_session.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::remote {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

RunCommand run_in(Session& session) {
  return [&session](const std::vector<std::string>& argv, const std::string& input) {
    return session.run(argv, input, std::chrono::seconds(60), {});
  };
}

class ShellFiles : public testing::Test {
 protected:
  test::TempDir dir_;
  std::unique_ptr<Session> session_ = make_local_session();
  RemotePath folder_{(fs::canonical(dir_.path()) / "a b'$(x)").string()};
  fs::path here_{folder_.str()};
  const std::string binary_ = std::string("\0\n'end\n\xff", 9) + std::string(100'000, 'x');

  std::vector<FileView> look(const std::vector<FileQuery>& files) {
    return look_by_shell(run_in(*session_), folder_, files);
  }
  /// Calls `call` where the program `name` is this shell script.
  void with_program(const std::string& name, const std::string& script,
                    const std::function<void()>& call) {
    write_file_atomic(dir_ / name, "#!/bin/sh\n" + script + "\n", 0755);
    const std::string path = std::getenv("PATH");
    ::setenv("PATH", (dir_.path().string() + ":" + path).c_str(), 1);
    call();
    ::setenv("PATH", path.c_str(), 1);
    fs::remove(dir_ / name);
  }
  bool put_with_sync(const std::string& script) {
    const std::vector<NewFile> files = {{"one", "1"}, {"two", ""}};
    bool done = false;
    with_program("sync", script, [&] { done = put_by_shell(run_in(*session_), folder_, files); });
    return done;
  }
  void expect_no_answer(const std::string& name, const std::string& problem) {
    const Error error = test::error_of([&] { look({{name, 10}}); });
    EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(problem));
  }
};

TEST_F(ShellFiles, LookReturnsTheFilesOfPutFiles) {
  const std::vector<NewFile> files = {
      {"one", binary_}, {"in/", ""}, {"empty", ""}, {"-rf", "text\n"}};
  ASSERT_TRUE(put_by_shell(run_in(*session_), folder_, files));
  const auto views = look({{"one", 1 << 20}, {"empty", 10}, {"-rf", 5}, {"-rf", 4}, {"no", 1}});
  ASSERT_EQ(views.size(), 5u);
  EXPECT_EQ(views[0].bytes, binary_);
  EXPECT_EQ(views[0].info->size_bytes, binary_.size());
  EXPECT_EQ(views[1].info->size_bytes, 0u);
  EXPECT_EQ(views[2].bytes, "text\n");
  EXPECT_EQ(views[3].bytes, "");
  EXPECT_EQ(views[3].info->size_bytes, 5u);
  EXPECT_FALSE(views[4].info);
  EXPECT_TRUE(fs::is_directory(here_ / "in"));
  EXPECT_EQ(fs::status(here_).permissions(), fs::perms(0700));
  EXPECT_EQ(fs::status(here_ / "one").permissions(), fs::perms(0600));
}

TEST_F(ShellFiles, ReplacesFilesLinksAndLeftoverTempFiles) {
  fs::create_directories(here_);
  write_file_atomic(here_ / "one", "a longer content than the new one");
  fs::create_directories(here_ / "one.tmp");
  fs::create_directory_symlink(dir_ / "", here_ / "two");
  const std::vector<NewFile> files = {{"one", "new"}, {"two", "too"}};
  ASSERT_TRUE(put_by_shell(run_in(*session_), folder_, files));
  EXPECT_EQ(read_file(here_ / "one", 100), "new");
  EXPECT_EQ(read_file(here_ / "two", 100), "too") << "instead of a file behind the link";
  EXPECT_FALSE(fs::exists(here_ / "one.tmp"));
}

TEST_F(ShellFiles, ReadsRegularFilesOnly) {
  fs::create_directories(here_ / "sub");
  fs::create_symlink("/etc/passwd", here_ / "link");
  fs::create_symlink("nowhere", here_ / "dangling");
  ASSERT_EQ(::mkfifo((here_ / "pipe").c_str(), 0600), 0);
  const auto views = look({{"sub", 9999}, {"link", 9999}, {"dangling", 9999}, {"pipe", 9999}});
  EXPECT_EQ(views.at(0).info->type, FileInfo::Type::kFolder);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(views.at(i).info->type, FileInfo::Type::kOther);
    EXPECT_EQ(views[i].bytes, "");
  }
}

TEST_F(ShellFiles, AMissingFolderHasNoFiles) {
  EXPECT_FALSE(look({{"one", 10}}).at(0).info);
  EXPECT_FALSE(fs::exists(here_));
}

TEST_F(ShellFiles, NothingIsBelowAFile) {
  fs::create_directories(here_);
  write_file_atomic(here_ / "file", "x");
  EXPECT_FALSE(look({{"file/below", 10}}).at(0).info);
  for (const fs::path& folder : {here_ / "file", here_ / "file/below"}) {
    folder_ = RemotePath(folder.string());
    EXPECT_FALSE(look({{"one", 10}}).at(0).info);
  }
}

// A loop of links in place of a file server that does not answer: the update of a finished training
// may be there.
TEST_F(ShellFiles, ANameThatCannotBeExaminedIsNotAbsent) {
  fs::create_directories(here_);
  fs::create_symlink("loop", here_ / "loop");
  EXPECT_EQ(look({{"loop", 10}}).at(0).info->type, FileInfo::Type::kOther);
  expect_no_answer("loop/file", "Too many levels of symbolic links");
  for (const char* folder : {"loop", "loop/below"}) {
    folder_ = RemotePath((here_ / folder).string());
    expect_no_answer("one", "Too many levels of symbolic links");
  }
}

// The account has lost the right to enter the folder, which may hold a finished update.
TEST_F(ShellFiles, AFolderThatCannotBeEnteredIsNotAbsent) {
  constexpr int kNoOtherUser = 77;
  constexpr uid_t kNobody = 65534;
  fs::create_directories(here_);
  fs::permissions(dir_.path(), fs::perms(0755));
  fs::permissions(here_, fs::perms::none);
  const int outcome = test::in_child([&] {
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) return kNoOtherUser;
    try {
      look({{"one", 10}});
      return 1;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kIo ? 0 : 2;
    }
  });
  fs::permissions(here_, fs::perms(0700));
  if (outcome == kNoOtherUser) GTEST_SKIP() << "root cannot become another user here";
  EXPECT_EQ(outcome, 0);
}

TEST_F(ShellFiles, AProgramThatFailsTellsOfNoAbsence) {
  fs::create_directories(here_);
  write_file_atomic(here_ / "one", "1");
  const std::string loader = "cannot open shared object file: No such file or directory";
  with_program("stat", "echo 'libacl.so: " + loader + "' >&2; exit 127",
               [&] { expect_no_answer("two", loader); });
  with_program("wc", "echo 'one: Input/output error' >&2; exit 1",
               [&] { expect_no_answer("one", "Input/output error"); });
}

TEST_F(ShellFiles, FailsOverAFolderBeforeAnyFileHasItsName) {
  fs::create_directories(here_ / "two");
  try {
    put_by_shell(run_in(*session_), folder_, std::vector<NewFile>{{"one", "1"}, {"two", "2"}});
    FAIL() << "put a file over a folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_THAT(error.what(), HasSubstr("two is a folder"));
  }
  EXPECT_FALSE(fs::exists(here_ / "one"));
}

TEST_F(ShellFiles, RejectsAnIncompleteAnswer) {
  test::FakeSession far;
  std::string answer;
  far.on_run = [&](const auto&, const auto&) { return CommandResult{0, answer, ""}; };
  const std::string whole = "content 3\nabc\nfile 77\nabsent\nend\n";
  const std::vector<FileQuery> queries = {{"a", 10}, {"b", 10}, {"c", 10}};
  for (size_t size = 0; size < whole.size(); ++size) {
    answer = whole.substr(0, size);
    EXPECT_THROW(look_by_shell(run_in(far), folder_, queries), Error) << answer;
  }
  for (const char* other : {"content 11\nabcdefghijk\nabsent\nabsent\nend\n", "content -1\n\n",
                            "file x\n", "content\n", "none\nend\n"}) {
    answer = other;
    EXPECT_THROW(look_by_shell(run_in(far), folder_, queries), Error) << answer;
  }
  answer = whole;
  EXPECT_EQ(look_by_shell(run_in(far), folder_, queries).at(0).bytes, "abc");
  answer = "en";
  EXPECT_THROW(put_by_shell(run_in(far), folder_, std::vector<NewFile>{{"a", "1"}}), Error);
}

// A crash of the file server could otherwise leave a name without its content.
TEST_F(ShellFiles, SyncsEachFileBeforeAnyHasItsNameAndThenTheNames) {
  const std::string log = dir_ / "log";
  ASSERT_TRUE(
      put_with_sync("if [ -e one ]; then echo named; fi >>" + log + "; echo \"$1\" >>" + log));
  EXPECT_EQ(read_file(log, 1000), "./one.tmp\n./two.tmp\nnamed\n.\n");
}

// NFS may report a full disk at the sync only.
TEST_F(ShellFiles, AFailedSyncGivesNoFile) {
  EXPECT_FALSE(put_with_sync("[ \"$1\" != ./two.tmp ]"));
  EXPECT_FALSE(fs::exists(here_ / "one"));
  EXPECT_FALSE(put_with_sync("[ \"$1\" != . ]")) << "the names may be lost";
}

TEST_F(ShellFiles, AFileThatGetsNoNameIsAnError) {
  const auto put = [&] {
    put_by_shell(run_in(*session_), folder_, std::vector<NewFile>{{"one", "1"}});
  };
  with_program("mv", "echo 'mv: Stale file handle' >&2; exit 1",
               [&] { EXPECT_EQ(test::kind_of(put), ErrorKind::kIo); });
}

TEST_F(ShellFiles, AFolderThatCannotBeMadeIsAnError) {
  write_file_atomic(dir_ / "file", "x");
  folder_ = RemotePath((dir_ / "file/below").string());
  const auto put = [&] {
    put_by_shell(run_in(*session_), folder_, std::vector<NewFile>{{"one", "1"}});
  };
  EXPECT_EQ(test::kind_of(put), ErrorKind::kIo);
}

TEST_F(ShellFiles, IncompleteContentsGiveNoFile) {
  // The session loses the end of stdin, like a lost link.
  class Torn final : public test::FakeSession {
   public:
    std::unique_ptr<Session> inner = make_local_session();
    CommandResult run(const std::vector<std::string>& argv, const std::string& text,
                      std::chrono::milliseconds timeout, std::stop_token stop) override {
      return inner->run(argv, text.substr(0, text.size() - 1), timeout, stop);
    }
  } torn;
  EXPECT_FALSE(
      put_by_shell(run_in(torn), folder_, std::vector<NewFile>{{"one", "1"}, {"two", "22"}}));
  EXPECT_FALSE(fs::exists(here_ / "one"));
  EXPECT_FALSE(fs::exists(here_ / "two"));
}

}  // namespace
}  // namespace xffl::remote
