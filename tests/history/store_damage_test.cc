// Damage done with SQLite itself and to the file's bytes: found, and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>
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

// Another program holds the database for a moment: a backup, or sqlite3 in a user's hands.
TEST(Journal, WaitsForAnotherWriterOfTheDatabase) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  const auto journal = Store::open(path);
  sqlite3* other = nullptr;
  ASSERT_EQ(::sqlite3_open(path.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(::sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  std::jthread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    ::sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr);
  });
  EXPECT_NO_THROW(journal->append({.kind = "run_started"}));
  holder.join();
  ::sqlite3_close(other);
}

// A slow reader holds newer events back in the write-ahead log.
TEST(Journal, AReaderGetsTheEventsThatOnlyTheLogHas) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  const auto journal = Store::open(path);
  journal->append({.kind = "run_started"});
  sqlite3* slow = nullptr;
  ASSERT_EQ(::sqlite3_open(path.c_str(), &slow), SQLITE_OK);
  const char* const read = "BEGIN; SELECT count(*) FROM events";
  ASSERT_EQ(::sqlite3_exec(slow, read, nullptr, nullptr, nullptr), SQLITE_OK);
  journal->append({.kind = "round_planned", .round = 1});
  EXPECT_EQ(read_events(path).size(), 2u);
  ::sqlite3_close(slow);
}

// A network file system, as SQLite sees it: without shared memory, and thus without a write-ahead
// log. SQLite's pauses take no time; `on_pause` gets their sum.
class NetworkFiles {
 public:
  explicit NetworkFiles(std::function<void(std::chrono::microseconds)> on_pause) {
    on_pause_ = std::move(on_pause);
    paused_ = {};
    usual_ = ::sqlite3_vfs_find(nullptr);
    vfs_ = *usual_;
    vfs_.zName = "network-files";
    vfs_.xOpen = open;
    vfs_.xSleep = sleep;
    ::sqlite3_vfs_register(&vfs_, 1);
  }
  ~NetworkFiles() { ::sqlite3_vfs_unregister(&vfs_); }
  NetworkFiles(const NetworkFiles&) = delete;
  NetworkFiles& operator=(const NetworkFiles&) = delete;

 private:
  static int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
    const int code = usual_->xOpen(usual_, name, file, flags, out_flags);
    if (code != SQLITE_OK || (flags & SQLITE_OPEN_MAIN_DB) == 0) return code;
    methods_ = *file->pMethods;
    methods_.iVersion = 1;
    file->pMethods = &methods_;
    return code;
  }
  static int sleep(sqlite3_vfs*, int microseconds) {
    on_pause_(paused_ += std::chrono::microseconds(microseconds));
    return microseconds;
  }

  static inline std::function<void(std::chrono::microseconds)> on_pause_;
  static inline std::chrono::microseconds paused_{};
  static inline sqlite3_vfs* usual_ = nullptr;
  static inline sqlite3_vfs vfs_{};
  static inline sqlite3_io_methods methods_{};
};

// The database of a journal on a network file system, with a program that has it locked and goes
// on after an hour.
class LockedJournal : public testing::Test {
 protected:
  ~LockedJournal() override { ::sqlite3_close(program_); }

  void lock(const std::string& sql) {
    ASSERT_EQ(::sqlite3_open(path_.c_str(), &program_), SQLITE_OK);
    ASSERT_EQ(::sqlite3_exec(program_, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  }
  void unlock_after_an_hour(std::chrono::microseconds paused) {
    paused_ = paused;
    if (paused < std::chrono::hours(1) || waited_) return;
    waited_ = true;
    ::sqlite3_exec(program_, "ROLLBACK", nullptr, nullptr, nullptr);
  }

  const test::TempDir dir_;
  const fs::path path_ = dir_ / "journal.db";
  sqlite3* program_ = nullptr;
  bool waited_ = false;
  std::chrono::microseconds paused_{};  // of SQLite, in all
  const NetworkFiles files_{
      [this](std::chrono::microseconds paused) { unlock_after_an_hour(paused); }};
};

TEST_F(LockedJournal, AnEventWaitsForAReader) {
  const auto journal = Store::open(path_);
  lock("BEGIN; SELECT count(*) FROM events");
  testing::internal::CaptureStderr();
  EXPECT_NO_THROW(journal->append({.kind = "run_started"}));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(waited_);
  const size_t warning = log.find("the journal's database is locked");
  EXPECT_NE(warning, std::string::npos) << log;
  EXPECT_EQ(warning, log.rfind("the journal's database is locked")) << log;
  EXPECT_EQ(read_events(path_).size(), 1u);
}

TEST_F(LockedJournal, IsNotOpened) {
  Store::open(path_);
  lock("BEGIN IMMEDIATE");
  EXPECT_EQ(test::kind_of([&] { Store::open(path_); }), ErrorKind::kIo);
  EXPECT_FALSE(waited_);
  EXPECT_GE(paused_, std::chrono::seconds(9)) << "a reader may be there for a moment";
}

// Its lines may be events that the database has lost.
TEST(MirrorFile, IsKeptWhenItCannotBeRead) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db", mirror = dir / "journal.jsonl";
  Store::open(path)->append({.kind = "run_started"});
  const std::string before = read_file(mirror, 1 << 20);
  fs::remove(mirror);
  fs::create_symlink(mirror, mirror);  // ELOOP
  Store::open(path);
  EXPECT_EQ(read_file(mirror, 1 << 20), before);
  const auto is_kept = [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with("journal.jsonl.unread-");
  };
  const fs::directory_iterator entries(dir.path());
  EXPECT_EQ(std::count_if(begin(entries), end(entries), is_kept), 1);
}

// A disk that cannot read one page of a database: a VFS of SQLite, in use while the object lives.
class BadSector {
 public:
  BadSector(const fs::path& file, int page) {
    file_ = fs::canonical(file);
    begin_ = page * kPageBytes;
    usual_ = ::sqlite3_vfs_find(nullptr);
    vfs_ = *usual_;
    vfs_.zName = "bad-sector";
    vfs_.xOpen = open;
    ::sqlite3_vfs_register(&vfs_, 1);
  }
  ~BadSector() { ::sqlite3_vfs_unregister(&vfs_); }
  BadSector(const BadSector&) = delete;
  BadSector& operator=(const BadSector&) = delete;

 private:
  static constexpr sqlite3_int64 kPageBytes = 4096;

  static int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
    const int code = usual_->xOpen(usual_, name, file, flags, out_flags);
    if (code != SQLITE_OK || name == nullptr || file_ != name) return code;
    methods_ = file->pMethods;
    failing_ = *methods_;
    failing_.xRead = read;
    file->pMethods = &failing_;
    return code;
  }
  static int read(sqlite3_file* file, void* to, int size, sqlite3_int64 at) {
    if (at < begin_ + kPageBytes && at + size > begin_) return SQLITE_IOERR_READ;
    return methods_->xRead(file, to, size, at);
  }

  static inline std::string file_;
  static inline sqlite3_int64 begin_ = 0;
  static inline sqlite3_vfs* usual_ = nullptr;
  static inline sqlite3_vfs vfs_{};
  static inline const sqlite3_io_methods* methods_ = nullptr;
  static inline sqlite3_io_methods failing_{};
};

class JournalDamage : public testing::Test {
 protected:
  JournalDamage() : path_(dir_ / "journal.db") {
    const auto journal = Store::open(path_);
    for (int i = 1; i <= 5; ++i)
      journal->append({.kind = "tick", .round = i, .payload = R"({"secret":"abcdef"})"});
  }

  // SQLite's message, "" when all went well.
  std::string sql(const std::string& text) {
    sqlite3* database = nullptr;
    sqlite3_open(path_.c_str(), &database);
    char* message = nullptr;
    sqlite3_exec(database, text.c_str(), nullptr, nullptr, &message);
    const std::string result = message == nullptr ? "" : message;
    sqlite3_free(message);
    sqlite3_close(database);
    return result;
  }

  void damage_row(int seq) {
    ASSERT_EQ(sql("DROP TRIGGER events_never_change; UPDATE events SET payload = "
                  "'{\"secret\":\"abcdeg\"}' WHERE seq = " +
                  std::to_string(seq)),
              "");
  }
  void damage_line(int seq) {
    const fs::path mirror = dir_ / "journal.jsonl";
    std::string text = read_file(mirror, 1 << 20);
    text[text.find("tick", text.find("\"seq\":" + std::to_string(seq)))] = 'p';
    write_file_atomic(mirror, text);
  }

  void expect_error(ErrorKind kind, const std::string& text) {
    for (const bool writer : {true, false}) try {
        if (writer)
          Store::open(path_);
        else
          read_events(path_);
        ADD_FAILURE() << "the damage was not found; writer: " << writer;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), kind) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
  }

  const test::TempDir dir_;
  const fs::path path_;
};

TEST_F(JournalDamage, RowsAreGuarded) {
  EXPECT_THAT(sql("UPDATE events SET payload = '{}' WHERE seq = 2"), HasSubstr("never change"));
  EXPECT_THAT(sql("DELETE FROM events WHERE seq = 5"), HasSubstr("never removed"));
  EXPECT_THAT(sql("INSERT INTO events SELECT 9, time, kind, round, facility, attempt, payload, "
                  "chain FROM events WHERE seq = 5"),
              HasSubstr("in order"));
  EXPECT_EQ(read_events(path_).size(), 5u);
}

TEST_F(JournalDamage, AChangedPayloadBreaksTheChainThere) {
  ASSERT_EQ(sql("DROP TRIGGER events_never_change;"
                "UPDATE events SET payload = '{\"secret\":\"abcdeg\"}' WHERE seq = 3"),
            "");
  expect_error(ErrorKind::kCorrupt, "event 3");
}

// A reader of the newest events checks what it reads.
TEST_F(JournalDamage, AChangedEventIsFoundAmongTheNewest) {
  const auto newest = [&](int count) {
    return read_newest_events(path_, [&](const StoredEvent&) { return --count > 0; });
  };
  EXPECT_EQ(newest(2).size(), 2u);
  EXPECT_EQ(newest(9).size(), 5u);
  ASSERT_EQ(sql("DROP TRIGGER events_never_change;"
                "UPDATE events SET payload = '{\"secret\":\"abcdeg\"}' WHERE seq = 3"),
            "");
  EXPECT_EQ(newest(2).front().seq, 4);
  EXPECT_EQ(test::kind_of([&] { newest(3); }), ErrorKind::kCorrupt);
}

// As a journal of an earlier release.
TEST_F(JournalDamage, WithoutItsIndexTheRunsEventsAreFoundToo) {
  Store::open(path_)->append({.kind = "run_resumed"});
  Store::open(path_)->append({.kind = "tick", .round = 6});
  const auto seqs = [&] {
    std::vector<int64_t> found;
    for (const StoredEvent& event :
         read_newest_events(path_, [](const StoredEvent&) { return false; }))
      found.push_back(event.seq);
    return found;
  };
  EXPECT_EQ(seqs(), (std::vector<int64_t>{6, 7}));
  ASSERT_EQ(sql("DROP INDEX events_of_run"), "");
  EXPECT_EQ(seqs(), (std::vector<int64_t>{6, 7}));
  Store::open(path_);
  EXPECT_THAT(sql("CREATE INDEX events_of_run ON events (seq)"), HasSubstr("already exists"));
}

TEST_F(JournalDamage, AMissingRowIsNamed) {
  ASSERT_EQ(sql("DROP TRIGGER events_never_go; DELETE FROM events WHERE seq = 2"), "");
  expect_error(ErrorKind::kCorrupt, "event 2 is missing");
}

TEST_F(JournalDamage, ExchangedRowsBreakTheChain) {
  ASSERT_EQ(sql("DROP TRIGGER events_never_change;"
                "UPDATE events SET seq = 99 WHERE seq = 4; UPDATE events SET seq = 4 WHERE seq = 5;"
                "UPDATE events SET seq = 5 WHERE seq = 99"),
            "");
  expect_error(ErrorKind::kCorrupt, "event 4");
}

TEST_F(JournalDamage, FlippedBytesInTheFileAreFound) {
  std::ifstream in(path_, std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(in)), {});
  const size_t at = content.rfind("abcdef");
  ASSERT_NE(at, std::string::npos) << "the payload is in the database file, not only in the log";
  std::string damaged = content;
  damaged[at] ^= 1;
  std::ofstream(path_, std::ios::binary) << damaged;
  expect_error(ErrorKind::kCorrupt, "event ");

  damaged = content.substr(0, content.size() - 4096);
  std::ofstream(path_, std::ios::binary) << damaged;
  expect_error(ErrorKind::kCorrupt, "damaged");
}

// The mirror is compared at an opening, weeks apart: both files may be damaged in between.
TEST_F(JournalDamage, OfARowAndOfTheLineOfAnotherEventIsRepaired) {
  const auto before = read_events(path_);
  damage_row(2);
  damage_line(4);
  expect_error(ErrorKind::kCorrupt, "event 2");
  const Repaired repaired = repair(path_);
  EXPECT_EQ(repaired.events, 5);
  EXPECT_EQ(repaired.lost_events, 0);
  Store::open(path_);
  const auto now = read_events(path_);
  ASSERT_EQ(now.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(now[i].payload, before[i].payload) << i;
    EXPECT_EQ(now[i].kind, before[i].kind) << i;
  }
}

TEST_F(JournalDamage, AnUnreadablePageIsRepaired) {
  const auto before = read_events(path_);
  for (const int page : {0, 1}) {  // SQLite's header, and the rows
    Repaired repaired;
    {
      const BadSector sector(path_, page);
      EXPECT_THAT(test::error_of([&] { Store::open(path_); }).what(),
                  HasSubstr("xffl journal repair"))
          << page;
      repaired = repair(path_);
    }
    EXPECT_EQ(repaired.events, 5) << page;
    EXPECT_TRUE(fs::exists(repaired.damaged)) << page;
    fs::remove(repaired.damaged);  // two repairs in one second
    const auto now = read_events(path_);
    ASSERT_EQ(now.size(), 5u) << page;
    EXPECT_EQ(now[4].payload, before[4].payload) << page;
    EXPECT_EQ(now[4].time_utc, before[4].time_utc) << page;
  }
}

TEST_F(JournalDamage, OfTheRowAndTheLineOfAnEventIsNoSilentLoss) {
  damage_row(3);
  damage_line(3);
  const std::string message = test::message_of(ErrorKind::kCorrupt, [&] { repair(path_); });
  EXPECT_THAT(message, HasSubstr("at event 3: "));
  EXPECT_THAT(message, HasSubstr("at least 3 would be lost"));
  expect_error(ErrorKind::kCorrupt, "event 3");
  EXPECT_EQ(repair(path_, Losses::kAccepted).events, 2);
  EXPECT_EQ(read_events(path_).size(), 2u);
}

TEST_F(JournalDamage, WithoutAMirrorIsNoSilentLoss) {
  fs::remove(dir_ / "journal.jsonl");
  damage_row(3);
  EXPECT_THAT(test::message_of(ErrorKind::kCorrupt, [&] { repair(path_); }),
              HasSubstr("at least 3 would be lost"));
  EXPECT_EQ(repair(path_, Losses::kAccepted).events, 2);
}

// A search for later rows ends at the first row that SQLite cannot read.
TEST_F(JournalDamage, AnUnreadableRowWithoutAMirrorIsNoSilentLoss) {
  constexpr size_t kPage = 4096;
  {
    const auto journal = Store::open(path_);
    journal->append({.kind = "tick", .payload = R"({"long":")" + std::string(20'000, 'x') + "\"}"});
    journal->append({.kind = "tick"});
  }
  fs::remove(dir_ / "journal.jsonl");
  std::string content = read_file(path_, 1 << 20);
  const size_t at = content.find(std::string(4000, 'x'));
  ASSERT_NE(at, std::string::npos);
  content.replace(at / kPage * kPage, 4, 4, '\0');  // the page's link to the rest of the row
  std::ofstream(path_, std::ios::binary) << content;
  EXPECT_THAT(test::message_of(ErrorKind::kCorrupt, [&] { repair(path_); }),
              HasSubstr("at least 1 would be lost"));
  EXPECT_EQ(repair(path_, Losses::kAccepted).events, 5);
}

// A byte of each 64 of every page, and each byte of the page's header: the damage is found, or lies
// in unused space and changes nothing; the repaired journal has every event.
TEST_F(JournalDamage, AFlippedByteInAnyPageIsFoundAndRepaired) {
  constexpr size_t kPage = 4096, kStep = 64, kHeader = 8;
  {
    const auto journal = Store::open(path_);
    for (int i = 6; i <= 120; ++i)
      journal->append({.kind = "tick",
                       .round = i,
                       .facility = "alba",
                       .payload = R"({"secret":")" + std::string(150, 'x') + R"("})"});
  }
  const auto read = [](const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  };
  const std::string whole = read(path_), mirror = read(dir_ / "journal.jsonl");
  const auto before = read_events(path_);
  ASSERT_EQ(before.size(), 120u);
  ASSERT_GE(whole.size() / kPage, 10u);
  const auto is_before = [&](const std::vector<StoredEvent>& now) {
    return std::equal(now.begin(), now.end(), before.begin(), before.end(),
                      [](const StoredEvent& a, const StoredEvent& b) {
                        return a.seq == b.seq && a.kind == b.kind && a.round == b.round &&
                               a.facility == b.facility && a.payload == b.payload &&
                               a.time_utc == b.time_utc;
                      });
  };
  int found = 0, unused = 0;
  for (size_t page = 0; page < whole.size() / kPage; ++page) {
    int found_here = 0;
    for (size_t offset = 0; offset < kPage; offset += offset < kHeader ? 1 : kStep) {
      const size_t at = page * kPage + offset;
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x08);
      for (const char* suffix : {"-wal", "-shm"}) fs::remove(path_.string() + suffix);
      std::ofstream(path_, std::ios::binary) << damaged;
      std::ofstream(dir_ / "journal.jsonl", std::ios::binary) << mirror;
      try {
        EXPECT_TRUE(is_before(read_events(path_))) << "byte " << at << " gives other events";
        if (offset < kHeader) Store::open(path_);  // reads the writer's epoch, too
        ++unused;
      } catch (const Error& error) {
        EXPECT_TRUE(error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kUnsupported)
            << "byte " << at << ": " << error.what();
        ++found_here;
      }
      if (found_here == 1) {  // the repair of one damage of each page
        EXPECT_NE(audit_journal(path_).damage, "") << "byte " << at;
        EXPECT_EQ(repair(path_).events, 120) << "byte " << at;
        EXPECT_NO_THROW(Store::open(path_)) << "byte " << at;
        EXPECT_TRUE(is_before(read_events(path_))) << "byte " << at;
        ++found_here;
        ++found;
        for (const auto& entry : fs::directory_iterator(dir_.path()))
          if (entry.path().filename().string().find("damaged") != std::string::npos)
            fs::remove(entry.path());
      }
    }
    EXPECT_GE(found_here, 1) << "no damage of page " << page + 1 << " was found";
  }
  std::cout << whole.size() / kPage << " pages, repaired " << found << ", " << unused
            << " bytes in unused space\n";
}

TEST_F(JournalDamage, AnotherFileInItsPlaceIsRejected) {
  fs::remove(path_);
  std::ofstream(path_) << "this is a text file, and long enough to be looked at by SQLite, really "
                          "so, with more than one hundred bytes in it";
  expect_error(ErrorKind::kCorrupt, "not a database");
  fs::remove(path_);
  ASSERT_EQ(sql("CREATE TABLE other (x)"), "");
  expect_error(ErrorKind::kCorrupt, "not an xffl journal");
}

TEST_F(JournalDamage, ANewerSchemaIsRejected) {
  ASSERT_EQ(sql("PRAGMA user_version = 2"), "");
  expect_error(ErrorKind::kUnsupported, "schema version 2");
  EXPECT_EQ(test::kind_of([&] { repair(path_); }), ErrorKind::kUnsupported);
  EXPECT_EQ(sql("PRAGMA user_version = 1"), "");
  EXPECT_EQ(read_events(path_).size(), 5u) << "the repair has left it alone";
}

}  // namespace
}  // namespace xffl::history
