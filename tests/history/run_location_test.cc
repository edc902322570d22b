#include "xffl/history/run_location.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/base/file.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

const Place kBefore{"here", "/disk/project/runs/0001", 5, 700, 1000};

// `gone`: there is no run any more where it was.
Whereabouts of(const std::function<void(Place&)>& change, bool gone = false) {
  Place now = kBefore;
  change(now);
  return whereabouts(kBefore, now, [&](const fs::path& folder) {
    EXPECT_EQ(folder, kBefore.folder);
    return !gone;
  });
}

TEST(Place, AMovedFolderIsTheSame) {
  EXPECT_EQ(of([](Place& now) { now.folder = "/disk/renamed/runs/0001"; }), Whereabouts::kThere);
}

// A home of several log-in nodes, over NFS: numbers of devices are each host's own, and change.
TEST(Place, ASharedFolderIsTheSameOnEveryHost) {
  EXPECT_EQ(of([](Place& now) {
              now.host = "login2";
              now.device = 77;
            }),
            Whereabouts::kThere);
  EXPECT_EQ(of([](Place& now) {
              now.device = 78;
              now.born_ns = 0;
            }),
            Whereabouts::kThere)
      << "a newer kernel does, or does not, say when a folder was created";
}

TEST(Place, ACopyIsAnother) {
  const auto beside = [](Place& now) {
    now.folder = "/disk/copy/runs/0001";
    now.inode = 701;
    now.born_ns = 2000;
  };
  EXPECT_EQ(of(beside), Whereabouts::kCopied);
  EXPECT_EQ(of(beside, true), Whereabouts::kCopied) << "on one disk a moved folder stays the same";
  const auto other_disk = [&](Place& now) {
    beside(now);
    now.device = 6;
  };
  EXPECT_EQ(of(other_disk), Whereabouts::kCopied);
  const auto other_host = [&](Place& now) {
    other_disk(now);
    now.host = "there";
    now.folder = kBefore.folder;
  };
  EXPECT_EQ(of(other_host, true), Whereabouts::kCopied);
}

TEST(Place, TheSameNumberOnAnotherDiskIsNotTheSameFolder) {
  EXPECT_EQ(of([](Place& now) {
              now.folder = "/usb/project/runs/0001";
              now.device = 6;
              now.born_ns = 2000;
            }),
            Whereabouts::kCopied);
}

TEST(Place, AMoveToAnotherDiskAndARestoredBackupAreTaken) {
  EXPECT_EQ(of(
                [](Place& now) {
                  now.folder = "/disk2/project/runs/0001";
                  now.device = 6;
                  now.inode = 3;
                },
                true),
            Whereabouts::kMoved);
  EXPECT_EQ(of([](Place& now) { now.inode = 3; }), Whereabouts::kMoved);
}

TEST(Place, IsThatOfTheRealFolder) {
  const test::TempDir dir;
  make_dirs(dir / "a");
  const Place place = place_of(dir / "a");
  fs::create_directory_symlink(dir / "a", dir / "link");
  EXPECT_EQ(place_of(dir / "link"), place);
  EXPECT_EQ(place.folder, fs::canonical(dir / "a"));
  fs::rename(dir / "a", dir / "b");
  const auto always = [](const fs::path&) { return true; };
  EXPECT_EQ(whereabouts(place, place_of(dir / "b"), always), Whereabouts::kThere);
  fs::copy(dir / "b", dir / "c", fs::copy_options::recursive);
  EXPECT_EQ(whereabouts(place, place_of(dir / "c"), always), Whereabouts::kCopied);
}

}  // namespace
}  // namespace xffl::history
