#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/audit.h"
#include "xffl/history/store.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Repair : public testing::Test {
 protected:
  Repair() {
    tick(5);
    before_ = read_events(path_);
  }
  void tick(int count) {
    const auto journal = Store::open(path_);
    for (int i = 0; i < count; ++i)
      journal->append({.kind = "tick",
                       .round = i,
                       .facility = "alba",
                       .payload = R"({"b":1, "a":"\u00e9\n"})"});
  }
  void overwrite(const fs::path& path, std::streamoff at, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file << bytes;
  }
  // In the kind of the line's event.
  void damage_line(int seq) {
    std::string text = read_file(mirror_, 1 << 20);
    text[text.find("tick", text.find("\"seq\":" + std::to_string(seq)))] = 'p';
    write_file_atomic(mirror_, text);
  }
  // The mirror escapes what is escaped already: it needs twice the space of the database.
  static StoredEvent large_event() {
    std::string quotes;
    for (int i = 0; i < 200'000; ++i) quotes += "\\\"";
    return {.kind = "tick", .payload = "{\"a\":\"" + quotes + "\"}"};
  }
  static void on_a_small_disk(const std::function<void()>& use) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit little{700'000, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
    use();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  }
  ErrorKind opening() {
    try {
      Store::open(path_);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  }
  void expect_events(size_t count) {
    const auto now = read_events(path_);
    ASSERT_EQ(now.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(now[i].time_utc, before_[i].time_utc);
      EXPECT_EQ(now[i].payload, before_[i].payload);
      EXPECT_EQ(now[i].facility, before_[i].facility);
    }
  }

  const test::TempDir dir_;
  const fs::path path_ = dir_ / "journal.db", mirror_ = dir_ / "journal.jsonl";
  std::vector<StoredEvent> before_;
};

TEST_F(Repair, LeavesAWholeJournalAlone) {
  EXPECT_EQ(repair(path_).damaged, fs::path());
  expect_events(5);
}

TEST_F(Repair, RestoresEveryEventAndKeepsTheDamagedDatabase) {
  overwrite(path_, 8192 - 600, std::string(500, 'x'));  // rows fill a page from its end
  ASSERT_EQ(opening(), ErrorKind::kCorrupt);
  const Repaired repaired = repair(path_);
  EXPECT_EQ(repaired.events, 5);
  EXPECT_TRUE(fs::exists(repaired.damaged));
  expect_events(5);
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0600));
  tick(2);
  EXPECT_EQ(read_events(path_).size(), 7u);
}

// It would read its own epoch in the damaged file, and write beside the next coordinator.
TEST_F(Repair, TakesTheRunFromAFrozenCoordinator) {
  const auto frozen = Store::open(path_);
  fs::remove(path_.string() + ".lock");
  overwrite(path_, 8192 - 600, std::string(500, 'x'));
  ASSERT_TRUE(fs::exists(path_.string() + "-wal"));
  ASSERT_FALSE(repair(path_).damaged.empty());
  EXPECT_FALSE(fs::exists(path_.string() + "-wal")) << "the frozen coordinator's log";
  EXPECT_FALSE(frozen->is_writer());
  EXPECT_EQ(test::kind_of([&] { frozen->check_writer(); }), ErrorKind::kBusy);
  EXPECT_EQ(test::kind_of([&] { frozen->append({.kind = "tick"}); }), ErrorKind::kBusy);
  expect_events(5);
}

// A coordinator that is frozen during the repair must not have the epoch of a later one.
TEST_F(Repair, TheEpochStaysAboveThatOfEveryEarlierWriter) {
  tick(1);
  const int64_t before = Store::open(path_)->epoch();
  EXPECT_GT(before, 2);
  for (const bool readable : {true, false}) {
    overwrite(path_, 8192 - 600, std::string(500, 'x'));
    if (!readable) overwrite(path_, 0, std::string(100, 'x'));
    ASSERT_EQ(opening(), ErrorKind::kCorrupt);
    repair(path_);
    EXPECT_GT(Store::open(path_)->epoch(), before) << readable;
  }
  const int64_t repaired = Store::open(path_)->epoch();
  overwrite(path_, 8192 - 600, std::string(500, 'x'));
  ASSERT_FALSE(repair(path_).damaged.empty());
  EXPECT_GT(Store::open(path_)->epoch(), repaired) << "two repairs in one second";
}

// SQLite would apply a log of the damaged database to the repaired one.
TEST_F(Repair, NoLogOfTheDamagedDatabaseStays) {
  overwrite(path_, 0, std::string(100, 'x'));
  for (const char* part : {"-wal", "-shm"})
    std::ofstream(path_.string() + part) << std::string(4096, 'w');
  const Repaired repaired = repair(path_);
  EXPECT_TRUE(fs::exists(repaired.damaged));
  for (const char* part : {"-wal", "-shm"}) EXPECT_FALSE(fs::exists(path_.string() + part)) << part;
  expect_events(5);
}

// An earlier repair was killed.
TEST_F(Repair, RestoresAMissingJournal) {
  fs::remove(path_);
  write_file_atomic(path_.string() + ".repaired", "half");
  EXPECT_EQ(repair(path_).events, 5);
  expect_events(5);
}

// An older copy of the database is whole, and wrong.
TEST_F(Repair, RestoresTheLastEventsOfADatabase) {
  fs::copy_file(path_, dir_ / "older.db");
  tick(3);
  fs::rename(dir_ / "older.db", path_);
  ASSERT_EQ(opening(), ErrorKind::kCorrupt);
  EXPECT_EQ(repair(path_).events, 8);
  EXPECT_EQ(read_events(path_).size(), 8u);
}

// An opening that cut the mirror to the database would remove the other events, too.
TEST_F(Repair, ALostDatabaseCutsNoMirrorWithADamagedLine) {
  fs::copy_file(path_, dir_ / "older.db");
  tick(3);
  const std::string whole = read_file(mirror_, 1 << 20);
  fs::copy_file(dir_ / "older.db", path_, fs::copy_options::overwrite_existing);
  for (const int line : {6, 2}) {  // behind the older database's end, and before it
    write_file_atomic(mirror_, whole);
    damage_line(line);
    const std::string damaged = read_file(mirror_, 1 << 20);
    EXPECT_EQ(opening(), ErrorKind::kCorrupt) << line;
    EXPECT_EQ(read_file(mirror_, 1 << 20), damaged) << line;
  }
  fs::remove(path_);
  const std::string first = "x" + whole.substr(1);
  write_file_atomic(mirror_, first);
  EXPECT_EQ(opening(), ErrorKind::kCorrupt);
  EXPECT_EQ(read_file(mirror_, 1 << 20), first);
}

TEST_F(Repair, StopsAtTheFirstDamagedLineOfTheMirrorIfTheLossIsAccepted) {
  damage_line(3);
  fs::remove(path_);
  const std::string message = test::message_of(ErrorKind::kCorrupt, [&] { repair(path_); });
  EXPECT_THAT(message, HasSubstr(path_.string() + " and " + mirror_.string()));
  EXPECT_THAT(message, HasSubstr("at event 3: "));
  EXPECT_THAT(message, HasSubstr("at least 3 would be lost"));
  EXPECT_THAT(message, HasSubstr("--accept-loss"));
  EXPECT_FALSE(fs::exists(path_));
  const std::string lines = read_file(mirror_, 1 << 20);
  const Repaired repaired = repair(path_, Losses::kAccepted);
  EXPECT_EQ(repaired.events, 2);
  EXPECT_EQ(repaired.lost_events, 3);
  EXPECT_EQ(read_file(repaired.damaged_mirror, 1 << 20), lines);
  expect_events(2);
  tick(1);
  EXPECT_EQ(read_events(path_).size(), 3u);
}

// The database has lost events, and lines of its mirror are damaged.
TEST_F(Repair, ALossBehindAWholeDatabaseIsAcceptedFirst) {
  fs::copy_file(path_, dir_ / "older.db");
  tick(3);
  fs::rename(dir_ / "older.db", path_);
  damage_line(7);
  EXPECT_EQ(test::kind_of([&] { repair(path_); }), ErrorKind::kCorrupt);
  EXPECT_EQ(read_events(path_).size(), 5u);
  damage_line(6);
  EXPECT_EQ(test::kind_of([&] { repair(path_); }), ErrorKind::kCorrupt);
  const Repaired repaired = repair(path_, Losses::kAccepted);
  EXPECT_EQ(repaired.events, 5);
  EXPECT_EQ(repaired.lost_events, 3);
  EXPECT_EQ(repaired.damaged, fs::path()) << "the database is whole";
  EXPECT_TRUE(fs::exists(repaired.damaged_mirror));
  tick(1);
  EXPECT_EQ(read_events(path_).size(), 6u);
  EXPECT_TRUE(repair(path_).damaged.empty());
}

// No opening accepts such a line: a repair that finds nothing to do would be a dead end.
TEST_F(Repair, ALineThatIsNoEventIsALossToo) {
  std::ofstream(mirror_, std::ios::app) << "no event\n";
  ASSERT_EQ(opening(), ErrorKind::kCorrupt);
  EXPECT_EQ(test::kind_of([&] { repair(path_); }), ErrorKind::kCorrupt);
  EXPECT_EQ(repair(path_, Losses::kAccepted).lost_events, 1);
  tick(1);
  EXPECT_EQ(read_events(path_).size(), 6u);
}

TEST_F(Repair, WithoutAFirstEventFailsAlsoWhenALossIsAccepted) {
  damage_line(1);
  fs::remove(path_);
  EXPECT_EQ(test::kind_of([&] { repair(path_, Losses::kAccepted); }), ErrorKind::kNotFound);
  EXPECT_EQ(std::ranges::count(read_file(mirror_, 1 << 20), '\n'), 5);
}

TEST_F(Repair, FailsWithoutAMirror) {
  fs::remove(mirror_);
  overwrite(path_, 0, "not a database");
  try {
    repair(path_);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  }
  EXPECT_THAT(read_file(path_, 1 << 20), HasSubstr("not a database"));
}

TEST_F(Repair, IsRejectedWhileACoordinatorHoldsTheJournal) {
  const auto journal = Store::open(path_);
  try {
    repair(path_);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBusy);
  }
}

// A mirror that was torn by a crash, or is absent, is made whole at the next opening.
TEST_F(Repair, TheMirrorFollowsTheDatabase) {
  const std::string whole = read_file(mirror_, 1 << 20);
  EXPECT_EQ(std::ranges::count(whole, '\n'), 5);
  write_file_atomic(mirror_, whole.substr(0, whole.size() - 20));
  const JournalAudit audit = audit_journal(path_);
  EXPECT_EQ(audit.mirror_damage, "") << "a torn last line is no damage";
  EXPECT_EQ(audit.mirrored, 4);
  tick(0);
  EXPECT_EQ(read_file(mirror_, 1 << 20), whole);
  fs::remove(mirror_);
  tick(1);
  EXPECT_EQ(std::ranges::count(read_file(mirror_, 1 << 20), '\n'), 6);
}

// A coordinator that hangs while it reads the journal, as on a bad disk, is replaced.
TEST_F(Repair, ALateStartLeavesTheMirrorToItsSuccessor) {
  std::promise<void> reads, continues;
  std::jthread late([&] {
    bool first = true;
    EXPECT_EQ(test::kind_of([&] {
                Store::open(path_, [&](const StoredEvent&) {
                  if (!std::exchange(first, false)) return;
                  reads.set_value();
                  continues.get_future().wait();
                });
              }),
              ErrorKind::kBusy);
  });
  reads.get_future().wait();
  fs::remove(path_.string() + ".lock");
  const auto successor = Store::open(path_);
  successor->append({.kind = "tick"});
  continues.set_value();
  late.join();
  successor->append({.kind = "tick"});
  EXPECT_EQ(std::ranges::count(read_file(mirror_, 1 << 20), '\n'), 7);
}

TEST_F(Repair, AReplacedMirrorIsContinuedAtItsPath) {
  const auto journal = Store::open(path_);
  journal->append({.kind = "tick"});
  const std::string earlier = read_file(mirror_, 1 << 20);
  write_file_atomic(mirror_, earlier.substr(0, earlier.find('\n') + 1));
  journal->append({.kind = "tick"});
  journal->append({.kind = "tick"});
  EXPECT_EQ(std::ranges::count(read_file(mirror_, 1 << 20), '\n'), 8);
  fs::remove(mirror_);
  journal->append({.kind = "tick"});
  EXPECT_EQ(std::ranges::count(read_file(mirror_, 1 << 20), '\n'), 9);
}

TEST_F(Repair, AMirrorThatIsGoneAndCannotBeWrittenAgainIsReported) {
  const auto journal = Store::open(path_);
  fs::remove(mirror_);
  fs::create_directory(mirror_);
  testing::internal::CaptureStderr();
  journal->append({.kind = "tick"});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the journal's mirror was not written"), std::string::npos) << log;
}

// A coordinator runs for weeks: a disk that was full for a moment does not end its mirror.
TEST_F(Repair, TheMirrorIsCompletedWhenTheDiskHasSpaceAgain) {
  auto journal = Store::open(path_);
  on_a_small_disk([&] {
    journal->append({.kind = "tick"});  // the completion keeps the lines since the opening
    journal->append(large_event());
  });
  EXPECT_LT(std::ranges::count(read_file(mirror_, 1 << 22), '\n'), 7) << "the test tells nothing";
  journal->append({.kind = "tick"});
  EXPECT_EQ(std::ranges::count(read_file(mirror_, 1 << 22), '\n'), 8);
  journal.reset();
  fs::remove(path_);
  EXPECT_EQ(repair(path_).events, 8) << "the rest of the torn line is gone";
}

TEST_F(Repair, AMirrorThatDiffersIsRewrittenWhenTheDiskHasSpaceAgain) {
  Store::open(path_)->append(large_event());
  overwrite(mirror_, 0, "x");
  std::unique_ptr<Store> journal;
  on_a_small_disk([&] { journal = Store::open(path_); });
  journal->append({.kind = "tick"});
  EXPECT_EQ(std::ranges::count(read_file(mirror_, 1 << 22), '\n'), 7);
  journal.reset();
  fs::remove(path_);
  EXPECT_EQ(repair(path_).events, 7);
}

}  // namespace
}  // namespace xffl::history
