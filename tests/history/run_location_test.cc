#include "xffl/history/run_location.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/history/run_history.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

const RunLocation kBefore{"here", "/disk/project/runs/0001", 5, 700, 1000};

// `gone`: there is no run any more where it was.
Relocation of(const std::function<void(RunLocation&)>& change, bool gone = false) {
  RunLocation now = kBefore;
  change(now);
  return relocation_of(kBefore, now, [&](const fs::path& folder) {
    EXPECT_EQ(folder, kBefore.folder);
    return !gone;
  });
}

TEST(RunLocation, AMovedFolderIsTheSame) {
  EXPECT_EQ(of([](RunLocation& now) { now.folder = "/disk/renamed/runs/0001"; }),
            Relocation::kThere);
}

// A home of several login nodes, over NFS: numbers of devices are each host's own, and change.
TEST(RunLocation, ASharedFolderIsTheSameOnEveryHost) {
  EXPECT_EQ(of([](RunLocation& now) {
              now.host = "login2";
              now.device = 77;
            }),
            Relocation::kThere);
  EXPECT_EQ(of([](RunLocation& now) {
              now.device = 78;
              now.born_ns = 0;
            }),
            Relocation::kThere)
      << "a newer kernel does, or does not, say when a folder was created";
  RunLocation unknown = kBefore;
  unknown.host = "login2";
  unknown.born_ns = 0;
  const auto always = [](const fs::path&) { return true; };
  EXPECT_EQ(relocation_of(unknown, kBefore, always), Relocation::kThere) << "of an older kernel";
}

TEST(RunLocation, ACopyIsAnotherRun) {
  const auto beside = [](RunLocation& now) {
    now.folder = "/disk/copy/runs/0001";
    now.inode = 701;
    now.born_ns = 2000;
  };
  EXPECT_EQ(of(beside), Relocation::kCopied);
  EXPECT_EQ(of(beside, true), Relocation::kCopied) << "on one disk a moved folder stays the same";
  const auto other_disk = [&](RunLocation& now) {
    beside(now);
    now.device = 6;
  };
  EXPECT_EQ(of(other_disk), Relocation::kCopied);
  const auto other_host = [&](RunLocation& now) {
    other_disk(now);
    now.host = "there";
    now.folder = kBefore.folder;
  };
  EXPECT_EQ(of(other_host, true), Relocation::kCopied);
}

TEST(RunLocation, TheSameNumberOnAnotherDiskIsNotTheSameFolder) {
  EXPECT_EQ(of([](RunLocation& now) {
              now.folder = "/usb/project/runs/0001";
              now.device = 6;
              now.born_ns = 2000;
            }),
            Relocation::kCopied);
}

TEST(RunLocation, AMoveToAnotherDiskAndARestoredBackupAreAccepted) {
  EXPECT_EQ(of(
                [](RunLocation& now) {
                  now.folder = "/disk2/project/runs/0001";
                  now.device = 6;
                  now.inode = 3;
                },
                true),
            Relocation::kMoved);
  EXPECT_EQ(of([](RunLocation& now) { now.inode = 3; }), Relocation::kMoved);
}

// Other numbers in the journal stand for the other disk.
TEST(RunLocation, ARunOnAnotherDiskIsMovedOnlyWithoutAJournalThere) {
  const test::TempDir dir;
  const RunFolder folder(dir.path(), RunName("0001"));
  make_dirs(folder.path());
  make_dirs(dir / "earlier");
  RunLocation before = location_of(folder.path());
  before.folder = dir / "earlier";
  ++before.device;
  ++before.inode;
  RunHistory history(folder.journal());
  history.record({}, RunPlaced{before, /*adopted=*/false});
  write_file_atomic(dir / "earlier/journal.db", "");
  EXPECT_EQ(test::kind_of([&] { check_location(history, folder); }), ErrorKind::kUsage);
  fs::remove(dir / "earlier/journal.db");
  check_location(history, folder);
  EXPECT_EQ(history.state().location, location_of(folder.path()));
}

// A frozen coordinator then renames a file that is gone.
TEST(RunLocation, AnAdoptionTakesOverTheWorkFiles) {
  const test::TempDir dir;
  const RunFolder folder(dir.path(), RunName("0001"));
  make_dirs(folder.path());
  RunLocation before = location_of(folder.path());
  ++before.inode;
  fs::path work;
  {
    RunHistory history(folder.journal());
    history.record({}, RunPlaced{before, /*adopted=*/false});
    work = history.work_name(folder.config());
  }
  write_file_atomic(work, "late");
  EXPECT_TRUE(adopt_run(folder));
  EXPECT_FALSE(fs::exists(work));
}

TEST(RunLocation, ResolvesLinks) {
  const test::TempDir dir;
  make_dirs(dir / "a");
  const RunLocation place = location_of(dir / "a");
  fs::create_directory_symlink(dir / "a", dir / "link");
  EXPECT_EQ(location_of(dir / "link"), place);
  EXPECT_EQ(place.folder, fs::canonical(dir / "a"));
  fs::rename(dir / "a", dir / "b");
  const auto always = [](const fs::path&) { return true; };
  EXPECT_EQ(relocation_of(place, location_of(dir / "b"), always), Relocation::kThere);
  fs::copy(dir / "b", dir / "c", fs::copy_options::recursive);
  EXPECT_EQ(relocation_of(place, location_of(dir / "c"), always), Relocation::kCopied);
}

}  // namespace
}  // namespace xffl::history
