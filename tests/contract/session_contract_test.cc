// The contract of Session, tested on every implementation.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "support/fake_session.h"
#include "support/faulty_session.h"
#include "support/sshd.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/sha256.h"
#include "xffl/remote/login_shell.h"
#include "xffl/remote/session.h"

namespace xffl::remote {
namespace {

using test::kind_of;

// A session and an empty folder at its facility.
struct SessionFixture {
  virtual ~SessionFixture() = default;
  virtual Session& session() = 0;
  virtual RemotePath folder() = 0;
};

struct LocalFixture : SessionFixture {
  test::TempDir dir;
  std::unique_ptr<Session> local = make_local_session();
  Session& session() override { return *local; }
  RemotePath folder() override {
    return RemotePath(std::filesystem::canonical(dir.path()).string());
  }
};

struct LoginShellFixture : LocalFixture {
  std::shared_ptr<Session> shell = make_login_shell_session(make_local_session());
  Session& session() override { return *shell; }
};

struct FakeFixture : SessionFixture {
  test::FakeSession fake;
  FakeFixture() { fake.make_dirs(RemotePath("/scratch/x")); }
  Session& session() override { return fake; }
  RemotePath folder() override { return RemotePath("/scratch/x"); }
};

struct FaultyFixture : FakeFixture {
  test::FaultySession faulty{fake};
  Session& session() override { return faulty; }
};

struct SshFixture : SessionFixture {
  test::TempDir dir;
  test::Sshd sshd;
  std::shared_ptr<Session> ssh = make_ssh_session(sshd.settings());
  explicit SshFixture(test::SshdOptions options) : sshd(std::move(options)) {}
  Session& session() override { return *ssh; }
  RemotePath folder() override {
    return RemotePath(std::filesystem::canonical(dir.path()).string());
  }
};

std::unique_ptr<SessionFixture> ssh_fixture(test::SshdOptions options) {
  if (!test::Sshd::missing().empty()) return nullptr;
  return std::make_unique<SshFixture>(std::move(options));
}

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<SessionFixture>()> make;
  bool runs_commands = true;
};

class SessionContract : public testing::TestWithParam<Implementation> {
 protected:
  std::unique_ptr<SessionFixture> fixture_ = GetParam().make();
  test::FakeSession none_;  // without sshd the tests are skipped
  Session& session_ = fixture_ ? fixture_->session() : none_;
  RemotePath folder_ = fixture_ ? fixture_->folder() : RemotePath("/");

  void SetUp() override {
    if (!fixture_) GTEST_SKIP() << test::Sshd::missing();
  }

  void put(const std::string& name, std::string_view text, uint64_t offset = 0) {
    session_.write(folder_ / name, offset, std::as_bytes(std::span(text.data(), text.size())));
  }
  std::string get(const std::string& name) { return read_text(session_, folder_ / name, 1 << 20); }
};

TEST_P(SessionContract, StatReturnsTypeAndSize) {
  put("file", "12345");
  session_.make_dirs(folder_ / "sub");
  ASSERT_TRUE(session_.stat(folder_ / "file"));
  EXPECT_EQ(session_.stat(folder_ / "file")->type, FileInfo::Type::kRegular);
  EXPECT_EQ(session_.stat(folder_ / "file")->size_bytes, 5u);
  ASSERT_TRUE(session_.stat(folder_ / "sub"));
  EXPECT_EQ(session_.stat(folder_ / "sub")->type, FileInfo::Type::kFolder);
  EXPECT_FALSE(session_.stat(folder_ / "nothing"));
  EXPECT_FALSE(session_.stat(folder_ / "no/such/folder"));
}

TEST_P(SessionContract, WritesAtAnOffsetAndKeepsTheRest) {
  put("file", "abcdef");
  put("file", "XY", 2);
  EXPECT_EQ(get("file"), "abXYef");
  put("file", "gh", 6);
  EXPECT_EQ(get("file"), "abXYefgh");
}

TEST_P(SessionContract, AnEmptyWriteMakesAnEmptyFile) {
  put("file", "");
  ASSERT_TRUE(session_.stat(folder_ / "file"));
  EXPECT_EQ(get("file"), "");
}

TEST_P(SessionContract, ReadsFewerBytesOnlyAtTheEnd) {
  put("file", "abcdef");
  std::vector<std::byte> buffer(4);
  EXPECT_EQ(session_.read(folder_ / "file", 0, buffer), 4u);
  EXPECT_EQ(static_cast<char>(buffer[3]), 'd');
  EXPECT_EQ(session_.read(folder_ / "file", 4, buffer), 2u);
  EXPECT_EQ(static_cast<char>(buffer[0]), 'e');
  EXPECT_EQ(session_.read(folder_ / "file", 6, buffer), 0u);
  EXPECT_EQ(session_.read(folder_ / "file", 1000, buffer), 0u);
}

TEST_P(SessionContract, ThrowsNotFoundForAMissingPath) {
  std::vector<std::byte> buffer(4);
  EXPECT_EQ(kind_of([&] { session_.read(folder_ / "no", 0, buffer); }), ErrorKind::kNotFound);
  EXPECT_EQ(kind_of([&] { session_.write(folder_ / "no/file", 0, buffer); }), ErrorKind::kNotFound);
  EXPECT_EQ(kind_of([&] { session_.list(folder_ / "no"); }), ErrorKind::kNotFound);
  EXPECT_EQ(kind_of([&] { session_.rename(folder_ / "no", folder_ / "yes"); }),
            ErrorKind::kNotFound);
  EXPECT_EQ(kind_of([&] { read_text(session_, folder_ / "no", 10); }), ErrorKind::kNotFound);
}

TEST_P(SessionContract, RenameReplaces) {
  put("old", "old");
  put("new", "new");
  session_.sync(folder_ / "new");
  session_.rename(folder_ / "new", folder_ / "old");
  EXPECT_EQ(get("old"), "new");
  EXPECT_FALSE(session_.stat(folder_ / "new"));
}

TEST_P(SessionContract, RenamesFoldersWithTheirContent) {
  session_.make_dirs(folder_ / "a");
  put("a/file", "1");
  session_.rename(folder_ / "a", folder_ / "b");
  EXPECT_EQ(get("b/file"), "1");
  EXPECT_FALSE(session_.stat(folder_ / "a"));
}

TEST_P(SessionContract, ListsSortedPlainNames) {
  put("b", "");
  put(".hidden", "");
  put("..b", "");
  put("-n", "");
  session_.make_dirs(folder_ / "a/deeper");
  EXPECT_EQ(session_.list(folder_), (std::vector<std::string>{"-n", "..b", ".hidden", "a", "b"}));
}

TEST_P(SessionContract, MakeDirsIsIdempotentAndFailsOverAFile) {
  session_.make_dirs(folder_ / "a/b");
  session_.make_dirs(folder_ / "a/b");
  put("file", "x");
  EXPECT_EQ(kind_of([&] { session_.make_dirs(folder_ / "file"); }), ErrorKind::kIo);
}

TEST_P(SessionContract, PutFilesAndLookHandleSeveralSmallFiles) {
  std::string large(600'000, '\0');  // of more than one block
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + (i >> 11));
  const std::vector<NewFile> files = {{"a", "1\n"}, {"b", large}, {"inner/", ""}, {"empty", ""}};
  session_.put_files(folder_ / "new/sub", files);
  session_.put_files(folder_ / "new/sub", files);
  session_.make_dirs(folder_ / "new/sub/folder");
  const std::vector<FileQuery> queries = {{"b", 600'000}, {"b", 599'999}, {"folder", 9},
                                          {"a", 5},       {"empty", 0},   {"none", 9}};
  const std::vector<FileView> views = session_.look(folder_ / "new/sub", queries);
  ASSERT_EQ(views.size(), 6u);
  EXPECT_TRUE(views[0].bytes == large);
  EXPECT_EQ(views[1].bytes, "");
  EXPECT_EQ(views[1].info->size_bytes, 600'000u);
  EXPECT_EQ(views[2].info->type, FileInfo::Type::kFolder);
  EXPECT_EQ(views[3].bytes, "1\n");
  EXPECT_EQ(views[4].info->size_bytes, 0u);
  EXPECT_FALSE(views[5].info);
  EXPECT_FALSE(session_.look(folder_ / "no/such", queries).at(0).info);
  EXPECT_EQ(session_.list(folder_ / "new/sub"),
            (std::vector<std::string>{"a", "b", "empty", "folder", "inner"}));
  EXPECT_EQ(session_.stat(folder_ / "new/sub/inner")->type, FileInfo::Type::kFolder);
}

TEST_P(SessionContract, RemovesFilesAndTrees) {
  session_.make_dirs(folder_ / "a/b");
  put("a/b/file", "x");
  put("file", "x");
  session_.remove_tree(folder_ / "a");
  session_.remove_tree(folder_ / "file");
  session_.remove_tree(folder_ / "nothing");
  EXPECT_TRUE(session_.list(folder_).empty());
}

TEST_P(SessionContract, ReadTextRejectsALargerFile) {
  put("file", "12345");
  EXPECT_EQ(read_text(session_, folder_ / "file", 5), "12345");
  EXPECT_EQ(kind_of([&] { read_text(session_, folder_ / "file", 4); }), ErrorKind::kCorrupt);
  const std::string large = std::string(1 << 20, 'x') + "end";  // of more than one read
  put("large", large);
  EXPECT_TRUE(read_text(session_, folder_ / "large", 2 << 20) == large);
  session_.make_dirs(folder_ / "sub");
  EXPECT_EQ(kind_of([&] { read_text(session_, folder_ / "sub", 4); }), ErrorKind::kCorrupt);
}

TEST_P(SessionContract, WritesATextAtomically) {
  put("file", "a much longer text");
  put("file.tmp", "left by an interrupted write");
  write_text_atomic(session_, folder_ / "file", "short");
  EXPECT_EQ(get("file"), "short");
  EXPECT_EQ(session_.list(folder_), std::vector<std::string>{"file"});
}

TEST_P(SessionContract, UploadsAndDownloadsRanges) {
  std::string bytes(9'000'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + (i >> 11));
  const std::string name = "a 'file'; $(x)";
  put(name, "before");
  session_.upload(folder_ / name, 6, bytes.size(),
                  [&](uint64_t offset, std::span<std::byte> out) {
                    std::memcpy(out.data(), bytes.data() + (offset - 6), out.size());
                  },
                  {});
  EXPECT_EQ(session_.stat(folder_ / name)->size_bytes, bytes.size() + 6);
  std::string back;
  const Sink keep = [&](std::span<const std::byte> part) {
    back.append(reinterpret_cast<const char*>(part.data()), part.size());
  };
  session_.download(folder_ / name, 16, bytes.size() - 20, keep, {});
  EXPECT_TRUE(back == bytes.substr(10, bytes.size() - 20));
  EXPECT_EQ(kind_of([&] { session_.download(folder_ / name, 6, bytes.size() + 1, keep, {}); }),
            ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of([&] { session_.download(folder_ / "no", 0, 1, keep, {}); }),
            ErrorKind::kNotFound);
}

TEST_P(SessionContract, Sha256IsOfTheRangeOrEmpty) {
  put("file", "abcdef");
  const auto hash = session_.sha256(folder_ / "file", 2, 3);
  EXPECT_EQ(hash.value_or(sha256_hex("cde")), sha256_hex("cde"));
  EXPECT_FALSE(session_.sha256(folder_ / "file", 2, 5));
}

TEST_P(SessionContract, BlockHashesAreOfTheRangeOrEmpty) {
  put("file", "abcdefgh");
  const std::vector<std::string> expected = {sha256_hex("cd"), sha256_hex("ef"), sha256_hex("g")};
  EXPECT_EQ(session_.block_hashes(folder_ / "file", 2, 5, 2).value_or(expected), expected);
  EXPECT_FALSE(session_.block_hashes(folder_ / "file", 2, 7, 2));
}

TEST_P(SessionContract, AnUnknownProgramExitsWith127) {
  if (!GetParam().runs_commands) {
    EXPECT_EQ(kind_of([&] { session_.run({"true"}, "", std::chrono::seconds(10), {}); }),
              ErrorKind::kUnsupported);
    return;
  }
  const CommandResult result =
      session_.run({"no-such-program-xffl"}, "", std::chrono::seconds(10), {});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_NE(result.err.find("no-such-program-xffl"), std::string::npos);
}

// After a crash of the file server the name has the whole text, or does not exist.
TEST(WriteTextAtomic, RenamesAfterSync) {
  class Recorder final : public test::FakeSession {
   public:
    std::vector<std::string> calls;

    void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
      calls.push_back("write " + path.str());
      FakeSession::write(path, offset, bytes);
    }
    void sync(const RemotePath& path) override { calls.push_back("sync " + path.str()); }
    void rename(const RemotePath& from, const RemotePath& to) override {
      calls.push_back("rename " + from.str() + " " + to.str());
    }
  } session;
  write_text_atomic(session, RemotePath("/file"), "text");
  EXPECT_EQ(session.calls, (std::vector<std::string>{"write /file.tmp", "sync /file.tmp",
                                                     "rename /file.tmp /file"}));
}

INSTANTIATE_TEST_SUITE_P(
    Sessions, SessionContract,
    testing::Values(
        Implementation{"Local", [] { return std::make_unique<LocalFixture>(); }},
        Implementation{"LoginShell", [] { return std::make_unique<LoginShellFixture>(); }},
        Implementation{"Fake", [] { return std::make_unique<FakeFixture>(); }},
        Implementation{"Faulty", [] { return std::make_unique<FaultyFixture>(); }},
        Implementation{"Ssh", [] { return ssh_fixture({}); }},
        Implementation{"SshNoisy", [] { return ssh_fixture({.before_login = "echo Welcome"}); }},
        Implementation{"SshSftpOnly", [] { return ssh_fixture({.sftp_only = true}); }, false}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace xffl::remote
