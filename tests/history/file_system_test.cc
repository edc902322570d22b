#include "xffl/history/file_system.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/base/file.h"

namespace xffl::history {
namespace {

TEST(NetworkFileSystem, IsThatOfTheDeepestMount) {
  test::TempDir dir;
  const auto mounts = dir.path() / "mountinfo";
  write_file_atomic(
      mounts,
      "22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
      "30 22 0:30 / /home rw,relatime shared:2 master:3 - nfs4 nas:/home rw,vers=4.2\n"
      "31 30 0:31 / /home/ann/local rw - xfs /dev/sdb rw\n"
      "32 22 0:32 / /big\\040data rw - lustre 10.0.0.1@tcp:/big rw\n"
      "33 22 0:33 / /twice rw - nfs nas:/twice rw\n"
      "34 33 0:34 / /twice rw - tmpfs tmpfs rw\n"
      "35 22 0:35 / /remote rw - fuse.sshfs ann@host: rw\n"
      "36 22 0:36 / /box rw - fuse.fuse-overlayfs box rw\n"
      "not a line of it\n");
  const auto kind = [&](const char* path) { return network_file_system(path, mounts); };
  EXPECT_EQ(kind("/home/ann/project/runs/0001"), "nfs4");
  EXPECT_EQ(kind("/home"), "nfs4");
  EXPECT_EQ(kind("/homework"), "");
  EXPECT_EQ(kind("/home/ann/local/project"), "");
  EXPECT_EQ(kind("/big data/project"), "lustre");
  EXPECT_EQ(kind("/twice/x"), "");
  EXPECT_EQ(kind("/remote/x"), "fuse.sshfs");
  EXPECT_EQ(kind("/box/x"), "");
  EXPECT_EQ(kind("/elsewhere"), "");
  EXPECT_EQ(network_file_system("/home", dir.path() / "none"), "");
}

}  // namespace
}  // namespace xffl::history
