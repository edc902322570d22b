#include "xffl/history/store.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/run_history.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;
using test::kind_of;

TEST(Journal, AppendsInOrderAndReopens) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  {
    const auto journal = Store::open(path);
    const StoredEvent first = journal->append({.kind = "run_started"});
    EXPECT_EQ(first.seq, 1);
    EXPECT_EQ(first.time_utc.size(), 24u);
    EXPECT_EQ(first.payload, "{}");
    journal->append({.kind = "job_submitted",
                     .round = 2,
                     .facility = "alba",
                     .attempt = 1,
                     .payload = R"({"job":"17","note":"ž\u0000 'quoted'"})"});
  }
  const auto journal = Store::open(path);
  journal->append({.kind = "run_ended", .payload = R"({"ok":true})"});
  const std::vector<StoredEvent> events = journal->events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, "run_started");
  EXPECT_EQ(events[1].seq, 2);
  EXPECT_EQ(events[1].round, 2);
  EXPECT_EQ(events[1].facility, "alba");
  EXPECT_EQ(events[1].attempt, 1);
  EXPECT_EQ(events[1].payload, R"({"job":"17","note":"ž\u0000 'quoted'"})");
  EXPECT_EQ(events[2].seq, 3);
}

// SQLite moves the log into the database, and syncs both, only when nobody reads an earlier state.
TEST(Journal, AnEventBesideAReaderIsDurableAtOnce) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  const auto journal = Store::open(path);
  journal->append({.kind = "run_started"});
  std::promise<void> reads, end;
  std::jthread reader([&] {
    visit_events(path, {}, [&](const StoredEvent&) {
      reads.set_value();
      end.get_future().wait();
    });
  });
  reads.get_future().wait();
  for (int i = 0; i < 5; ++i) {
    test::synced_sizes.clear();
    journal->append({.kind = "round_planned", .round = 1});
    EXPECT_TRUE(test::is_synced(dir / "journal.db-wal")) << i;
  }
  end.set_value();
}

// The mirror may be the only copy of an event after a loss of power that damages the database.
TEST(Journal, ItsMirrorAndARepairedDatabaseAreDurable) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  {
    const auto journal = Store::open(path);
    journal->append({.kind = "run_created"});
    test::synced_sizes.clear();
    journal->append({.kind = "round_planned", .round = 1});
    EXPECT_TRUE(test::is_synced(dir / "journal.jsonl"));
  }
  fs::remove(path);
  test::synced_sizes.clear();
  EXPECT_EQ(repair(path).events, 2);
  EXPECT_TRUE(test::is_synced(path));
}

// After a loss of power a name without its content would be an empty config.resolved.yaml.
TEST(Journal, AFileBesideItIsDurable) {
  const test::TempDir dir;
  RunHistory history(dir / "journal.db");
  test::synced_sizes.clear();
  history.write_file(dir / "config.resolved.yaml", "rounds: 3\n");
  EXPECT_TRUE(test::is_synced(dir / "config.resolved.yaml"));
}

TEST(Journal, IsReadWhileItIsCreated) {
  for (int i = 0; i < 100; ++i) {
    const test::TempDir dir;
    const fs::path path = dir / "journal.db";
    std::jthread reader([&](std::stop_token stop) {
      while (!stop.stop_requested()) try {
          EXPECT_TRUE(read_events(path).empty());
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kNotFound) << error.what();
        }
    });
    EXPECT_TRUE(Store::open(path)->events().empty());
  }
}

// Another host, which cannot see the lock, reads the holder's name.
TEST(Journal, TheLockNamesItsHolderUntilTheEnd) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db", lock = dir / "journal.db.lock";
  {
    const auto journal = Store::open(path);
    EXPECT_GT(fs::file_size(lock), 0u);
  }
  EXPECT_EQ(fs::file_size(lock), 0u);
}

TEST(Journal, IsReadWhileAWriterHoldsIt) {
  const test::TempDir dir;
  const auto journal = Store::open(dir / "journal.db");
  EXPECT_TRUE(read_events(dir / "journal.db").empty());
  for (int i = 0; i < 20; ++i) {
    journal->append({.kind = "tick", .round = i});
    EXPECT_EQ(read_events(dir / "journal.db").size(), static_cast<size_t>(i) + 1);
  }
}

TEST(Journal, IsThreadSafe) {
  const test::TempDir dir;
  const auto journal = Store::open(dir / "journal.db");
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&journal, t] {
      for (int i = 0; i < 10; ++i) journal->append({.kind = "tick", .round = t});
    });
  threads.clear();
  std::set<int64_t> seqs;
  for (const StoredEvent& event : read_events(dir / "journal.db")) seqs.insert(event.seq);
  EXPECT_EQ(seqs.size(), 40u);
  EXPECT_EQ(*seqs.rbegin(), 40);
}

// The run's secret is in the journal and in its mirror, which each opening writes in its own way.
TEST(Journal, FilesArePrivateWhateverTheUmask) {
  const test::TempDir dir;
  for (const std::string mirror : {"new", "copied", "rewritten"}) {
    for (const auto& entry : fs::directory_iterator(dir.path()))
      fs::permissions(entry.path(), fs::perms{0644});  // as in a copy of the run's folder
    if (mirror == "rewritten") std::ofstream(dir / "journal.jsonl") << "damaged\n";
    const mode_t before = ::umask(0);
    const auto journal = Store::open(dir / "journal.db");
    journal->append({.kind = "tick"});
    ::umask(before);
    int files = 0;
    for (const auto& entry : fs::directory_iterator(dir.path())) {
      EXPECT_EQ(entry.status().permissions(), fs::perms::owner_read | fs::perms::owner_write)
          << entry.path() << ", mirror: " << mirror;
      ++files;
    }
    EXPECT_GE(files, 4) << "journal.db, its lock, its write-ahead log and its mirror";
  }
}

// Later checks cover the database only: SQLite silently drops a damaged tail of the log.
TEST(Journal, AnEventIsInTheDatabaseFileAtOnce) {
  const test::TempDir dir;
  const auto journal = Store::open(dir / "journal.db");
  journal->append({.kind = "tick", .payload = R"({"note":"abcdef"})"});
  EXPECT_NE(read_file(dir / "journal.db", 1 << 20).find("abcdef"), std::string::npos);
}

// After a failure of the disk its content is unknown until the file is read again: the same store
// records nothing more, also when the disk works again.
TEST(Journal, RecordsNothingAfterAFailureOfTheDisk) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  auto journal = Store::open(path);
  journal->append({.kind = "run_created"});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const std::string failure =
      test::message_of(ErrorKind::kIo, [&] { journal->append({.kind = "round_planned"}); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(failure.find("disk I/O error"), std::string::npos) << failure;
  const std::string later =
      test::message_of(ErrorKind::kIo, [&] { journal->append({.kind = "submit_intended"}); });
  EXPECT_NE(later.find("nothing more is recorded"), std::string::npos) << later;
  journal.reset();
  EXPECT_EQ(Store::open(path)->append({.kind = "run_resumed"}).seq, 2);
}

TEST(Journal, RejectsInvalidEvents) {
  const test::TempDir dir;
  const auto journal = Store::open(dir / "journal.db");
  const auto appends = [&](StoredEvent event) {
    return kind_of([&] { journal->append(std::move(event)); });
  };
  EXPECT_EQ(appends({.kind = ""}), ErrorKind::kInternal);
  EXPECT_EQ(appends({.kind = "Run-Started"}), ErrorKind::kInternal);
  EXPECT_EQ(appends({.kind = "tick", .round = -1}), ErrorKind::kInternal);
  EXPECT_EQ(appends({.kind = "tick", .payload = "[1]"}), ErrorKind::kInternal);
  EXPECT_EQ(appends({.kind = "tick", .payload = "{"}), ErrorKind::kCorrupt);
  EXPECT_EQ(appends({.kind = "tick", .facility = "../x"}), ErrorKind::kConfig);
  EXPECT_TRUE(journal->events().empty());
  EXPECT_EQ(journal->append({.kind = "tick"}).seq, 1);
}

TEST(Journal, AMissingJournalOrFolderIsAnError) {
  const test::TempDir dir;
  EXPECT_EQ(kind_of([&] { read_events(dir / "journal.db"); }), ErrorKind::kNotFound);
  EXPECT_EQ(lock_holder(dir / "journal.db"), "");
  EXPECT_EQ(kind_of([&] { Store::open(dir / "no-folder" / "journal.db"); }), ErrorKind::kNotFound);
  std::ofstream(dir / "file") << "x";
  EXPECT_EQ(kind_of([&] { Store::open(dir / "file" / "journal.db"); }), ErrorKind::kIo);
}

// On a shared file system, or because a user removed the lock, two coordinators may believe that
// a run is theirs: the stale one notices before it acts, because intents are recorded first.
TEST(Journal, AStaleWriterIsRejectedAtItsNextEvent) {
  const test::TempDir dir;
  const fs::path path = dir / "journal.db";
  const auto stale = Store::open(path);
  stale->append({.kind = "run_created"});
  fs::remove(path.string() + ".lock");
  const auto fresh = Store::open(path);
  fresh->append({.kind = "run_resumed"});
  EXPECT_EQ(kind_of([&] { stale->append({.kind = "submit_intended"}); }), ErrorKind::kBusy);
  EXPECT_EQ(kind_of([&] { stale->append({.kind = "submit_intended"}); }), ErrorKind::kBusy);
  EXPECT_EQ(kind_of([&] { stale->check_writer(); }), ErrorKind::kBusy);
  fresh->append({.kind = "round_planned"});
  const std::vector<StoredEvent> events = read_events(path);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].kind, "run_resumed");
  EXPECT_EQ(kind_of([&] { Store::open(path); }), ErrorKind::kBusy) << "the fresh one has it";
}

// As by `mv` to another disk: the first writer keeps the removed files open, and reads its own
// epoch there for ever.
TEST(Journal, AWriterWhoseFolderWasMovedIsRejected) {
  for (const bool file_in_its_place : {false, true}) {
    const test::TempDir dir;
    const fs::path folder = dir / "run", moved = dir / "moved";
    fs::create_directory(folder);
    const auto stale = Store::open(folder / "journal.db");
    stale->append({.kind = "run_created"});
    fs::copy(folder, moved, fs::copy_options::recursive);
    fs::remove_all(folder);
    if (file_in_its_place) std::ofstream(folder) << "x";
    const auto fresh = Store::open(moved / "journal.db");
    try {
      stale->check_writer();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBusy) << error.what();
      const std::string text = error.what();
      for (const std::string& part : {(folder / "journal.db").string(),
                                      std::string("moved or removed"), std::string("--workdir")})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    }
    EXPECT_FALSE(stale->is_writer());
    EXPECT_EQ(kind_of([&] { stale->append({.kind = "submit_intended"}); }), ErrorKind::kBusy);
    EXPECT_NO_THROW(fresh->check_writer());
    fresh->append({.kind = "run_resumed"});
    EXPECT_EQ(read_events(moved / "journal.db").size(), 2u);
  }
}

// As on a network file system that is away for a moment.
TEST(Journal, AWriterWhosePathCannotBeReadGoesOn) {
  const test::TempDir dir;
  const fs::path folder = dir / "run", aside = dir / "aside";
  fs::create_directory(folder);
  const auto journal = Store::open(folder / "journal.db");
  journal->append({.kind = "run_created"});
  fs::rename(folder, aside);
  fs::create_symlink(folder, folder);  // a loop: ELOOP
  EXPECT_TRUE(journal->is_writer());
  EXPECT_NO_THROW(journal->check_writer());
  fs::remove(folder);
  fs::rename(aside, folder);
  EXPECT_NO_THROW(journal->append({.kind = "run_resumed"}));
  EXPECT_EQ(read_events(folder / "journal.db").size(), 2u);
}

// As `xffl status` of a snapshot or an archive.
TEST(Journal, IsReadOnAReadOnlyFileSystem) {
  const test::TempDir dir;
  const fs::path folder = dir / "a %20?#b";
  fs::create_directory(folder);
  Store::open(folder / "journal.db")->append({.kind = "run_created"});
  std::vector<StoredEvent> events;
  std::string problem = "no mount namespaces here";
  std::thread([&] {  // with mounts of its own
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
        ::mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0)
      return;
    try {
      events = read_events(folder / "journal.db");
      problem.clear();
    } catch (const Error& error) {
      problem = error.what();
    }
  })
      .join();
  if (problem == "no mount namespaces here") GTEST_SKIP() << problem;
  EXPECT_EQ(problem, "");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, "run_created");
}

TEST(Journal, AnUnwritableFolderIsAnError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const test::TempDir dir;
  fs::create_directory(dir / "locked");
  fs::permissions(dir / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(kind_of([&] { Store::open(dir / "locked" / "journal.db"); }), ErrorKind::kIo);
}

}  // namespace
}  // namespace xffl::history
