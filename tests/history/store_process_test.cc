// Other processes: one that holds the lock, ones that are killed, one with a full disk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/process.h"
#include "xffl/history/store.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

ProcessResult append_in_child(const fs::path& path, int count,
                              std::map<std::string, std::string> env = {}) {
  return run_process(
      {.argv = {STORE_APPENDER, path.string(), std::to_string(count)}, .env = std::move(env)});
}

// A child that holds the journal until it is destroyed, by SIGKILL.
class Holder {
 public:
  explicit Holder(const fs::path& path) {
    int out[2];
    int in[2];
    if (::pipe(out) != 0 || ::pipe(in) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], 1);
      ::dup2(in[0], 0);
      ::close(in[1]);
      ::execl(STORE_APPENDER, STORE_APPENDER, path.c_str(), "2", "hold", nullptr);
      ::_exit(98);
    }
    ::close(out[1]);
    ::close(in[0]);
    stdin_ = in[1];
    char byte;
    ready_ = ::read(out[0], &byte, 1) == 1;
    ::close(out[0]);
  }
  ~Holder() { kill(); }

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(stdin_);
    pid_ = 0;
  }
  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int stdin_ = -1;
  bool ready_ = false;
};

TEST(JournalProcess, ASecondWriterIsRejectedAndTheHolderNamed) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  Holder holder(path);
  ASSERT_TRUE(holder.ready());
  const std::string pid = "pid " + std::to_string(holder.pid()) + " on ";
  EXPECT_THAT(lock_holder(path), HasSubstr(pid));
  EXPECT_THAT(lock_holder(path), HasSubstr(" since 2"));
  try {
    Store::open(path);
    FAIL() << "two writers";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBusy);
    EXPECT_THAT(error.what(), HasSubstr(pid));
  }
  EXPECT_EQ(read_events(path).size(), 2u) << "a reader needs no lock";

  holder.kill();
  EXPECT_EQ(lock_holder(path), "");
  EXPECT_EQ(Store::open(path)->append({.kind = "tick"}).seq, 3);
}

TEST(JournalProcess, ASecondWriterInOneProcessIsRejected) {
  const test::TempDir dir;
  const auto first = Store::open(dir / "journal.db");
  EXPECT_NE(lock_holder(dir / "journal.db"), "");
  try {
    Store::open(dir / "journal.db");
    FAIL() << "two writers";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBusy);
  }
}

// The lock does not tell a copied run folder: xffl/history/run_location.h does.
TEST(JournalProcess, StaleLockTextHoldsNothing) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  std::ofstream(dir / "journal.db.lock")
      << R"({"host":")" << std::string(200, 'h')
      << R"(","pid":1,"start_ticks":1,"since":"2026-01-01T00:00:00.000Z"})";
  EXPECT_EQ(lock_holder(path), "");
  const auto journal = Store::open(path);
  EXPECT_EQ(journal->append({.kind = "tick"}).seq, 1);
  EXPECT_THAT(lock_holder(path), HasSubstr("pid " + std::to_string(::getpid()) + " on "))
      << "nothing of the longer text stays";
}

// A lock on NFS may not reach the other host: only its text tells a command that the run goes on.
TEST(JournalProcess, AHolderOnAnotherHostIsNamedOnANetworkFileSystem) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db", mounts = dir / "mounts";
  Store::open(path)->append({.kind = "tick"});
  std::ofstream(dir / "journal.db.lock")
      << R"({"host":"elsewhere","pid":1,"start_ticks":1,"since":"2026-01-01T00:00:00.000Z"})";
  const std::string here = fs::canonical(dir.path()).string();
  std::ofstream(mounts) << "\n";
  EXPECT_EQ(lock_holder(path), "") << "on a local file system";
  std::vector<std::string> holders;
  std::thread([&] {  // with mounts of its own
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(mounts.c_str(), "/proc/self/mounts", nullptr, MS_BIND, nullptr) != 0)
      return;
    // NFS, a FUSE that xffl does not know, and a mount table without the folder.
    for (const std::string& entry : {here + " nfs4", here + " fuse.new", here + "/x ext4"}) {
      std::ofstream(mounts) << "server " << entry << " rw 0 0\n";
      holders.push_back(lock_holder(path));
    }
  })
      .join();
  if (holders.empty()) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_EQ(holders,
            std::vector<std::string>(3, "pid 1 on elsewhere since 2026-01-01T00:00:00.000Z"));
}

// A killed coordinator has left the text: its supervisor starts the run again.
TEST(JournalProcess, StaleLockTextOfThisHostHoldsNothingOnANetworkFileSystem) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db", mounts = dir / "mounts";
  std::ofstream(dir / "journal.db.lock")
      << R"({"host":")" << this_host()
      << R"(","pid":1,"start_ticks":1,"since":"2026-01-01T00:00:00.000Z"})";
  std::ofstream(mounts) << "server " << fs::canonical(dir.path()).string() << " nfs4 rw 0 0\n";
  std::string holder, problem;
  std::optional<int64_t> seq;
  std::thread([&] {  // with mounts of its own
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(mounts.c_str(), "/proc/self/mounts", nullptr, MS_BIND, nullptr) != 0)
      return;
    holder = lock_holder(path);
    seq = 0;
    try {
      seq = Store::open(path)->append({.kind = "tick"}).seq;
    } catch (const Error& error) {
      problem = error.what();
    }
  })
      .join();
  if (!seq) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_EQ(holder, "");
  EXPECT_EQ(*seq, 1) << problem;
}

TEST(JournalProcess, IsValidAfterAKillAtEveryAppend) {
  for (int n = 1; n <= 4; ++n) {
    for (const bool before : {true, false}) {
      const test::TempDir dir;
      const fs::path path = dir / "journal.db";
      const std::string point = before ? "journal:before:" : "journal:after:";
      const ProcessResult child =
          append_in_child(path, 6, {{"XFFL_FAILPOINT", point + std::to_string(n)}});
      EXPECT_EQ(child.exit_code, 128 + SIGKILL) << point << n << ": " << child.err;
      const size_t expected = static_cast<size_t>(before ? n - 1 : n);
      EXPECT_EQ(read_events(path).size(), expected) << point << n;
      const auto journal = Store::open(path);
      EXPECT_EQ(journal->events().size(), expected) << point << n;
      EXPECT_EQ(journal->append({.kind = "tick"}).seq, static_cast<int64_t>(expected) + 1);
    }
  }
}

TEST(JournalProcess, AFailpointStopsTheProcessUntilItIsContinued) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  const pid_t child = start_detached({.argv = {STORE_APPENDER, path.string(), "2"},
                                      .env = {{"XFFL_FAILPOINT", "journal:stop:test_event"}}},
                                     dir / "output");
  int status = 0;
  for (size_t n = 1; n <= 2; ++n) {
    ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
    EXPECT_EQ(read_events(path).size(), n);
    ::kill(child, SIGCONT);
  }
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(JournalProcess, AMistypedFailpointIsRejected) {
  const test::TempDir dir;
  const ProcessResult child =
      append_in_child(dir / "journal.db", 2, {{"XFFL_FAILPOINT", "journal:afte:1"}});
  EXPECT_EQ(child.exit_code, exit_code(ErrorKind::kUsage));
  EXPECT_TRUE(read_events(dir / "journal.db").empty());
}

TEST(JournalProcess, AFullDiskIsAnErrorAndTheJournalStaysValid) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  const ProcessResult child = append_in_child(path, 2000, {{"XFFL_TEST_MAX_FILE_BYTES", "60000"}});
  EXPECT_EQ(child.exit_code, exit_code(ErrorKind::kIo)) << child.err;
  EXPECT_THAT(child.err, HasSubstr(path.string()));
  const size_t recorded = read_events(path).size();
  EXPECT_GT(recorded, 0u);
  EXPECT_LT(recorded, 2000u);
  EXPECT_EQ(Store::open(path)->append({.kind = "tick"}).seq, static_cast<int64_t>(recorded) + 1);
}

}  // namespace
}  // namespace xffl::history
