#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/store.h"

namespace xffl::history {
namespace {

TEST(NetworkFileSystem, IsThatOfTheDeepestMount) {
  test::TempDir dir;
  const auto mounts = dir.path() / "mounts";
  write_file_atomic(mounts,
                    "/dev/sda1 / ext4 rw,relatime 0 0\n"
                    "nas:/home /home nfs4 rw,vers=4.2 0 0\n"
                    "/dev/sdb /home/ann/local xfs rw 0 0\n"
                    "10.0.0.1@tcp:/big /big\\040data lustre rw 0 0\n"
                    "nas:/twice /twice nfs rw 0 0\n"
                    "tmpfs /twice tmpfs rw 0 0\n"
                    "ann@host: /remote fuse.sshfs rw 0 0\n"
                    "scratch /gpfs gpfs rw 0 0\n"
                    "beegfs_nodev /beegfs beegfs rw 0 0\n"
                    "10.0.0.2:6789:/ /ceph ceph rw 0 0\n"
                    "//nas/share /cifs cifs rw 0 0\n"
                    "box /box fuse.fuse-overlayfs rw,lowerdir=" +
                        std::string(20000, 'l') +
                        " 0 0\n"
                        "nas:/last /last nfs rw 0 0\n"
                        "not a line of it\n");
  const auto kind = [&](const char* path) { return network_file_system(path, mounts); };
  EXPECT_EQ(kind("/home/ann/project/runs/0001"), "nfs4");
  EXPECT_EQ(kind("/home"), "nfs4");
  EXPECT_EQ(kind("/homework"), "");
  EXPECT_EQ(kind("/home/ann/local/project"), "");
  EXPECT_EQ(kind("/big data/project"), "lustre");
  EXPECT_EQ(kind("/twice/x"), "");
  EXPECT_EQ(kind("/remote/x"), "fuse.sshfs");
  for (const std::string cluster : {"gpfs", "beegfs", "ceph", "cifs"})
    EXPECT_EQ(kind(("/" + cluster + "/x").c_str()), cluster);
  EXPECT_EQ(kind("/box/x"), "");
  EXPECT_EQ(kind("/last/x"), "nfs");
  EXPECT_EQ(kind("/elsewhere"), "");
  EXPECT_EQ(network_file_system("/home", dir.path() / "none"), "");
}

// The lock's text is the only sign of a coordinator on another host.
TEST(NetworkFileSystem, ALockThatCannotBeReadIsNotTaken) {
  test::TempDir dir;
  const std::string text = R"({"host":"elsewhere","pid":1,"start_ticks":1,"since":""})";
  write_file_atomic(dir / "journal.db.lock", text);
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_read, EIO)) return 77;
    try {
      Store::open(dir / "journal.db");
    } catch (const Error& error) {
      const bool names_it = std::string_view(error.what()).find(".lock") != std::string_view::npos;
      return names_it ? exit_code(error.kind()) : 1;
    }
    return 0;
  });
  if (code == 77) GTEST_SKIP() << "this system allows no seccomp filter";
  EXPECT_EQ(code, exit_code(ErrorKind::kIo));
  EXPECT_EQ(read_file(dir / "journal.db.lock", 1000), text);
}

TEST(NetworkFileSystem, HasOneOfTheseKinds) {
  const std::vector<std::string> kinds = {
      "nfs",         "nfs4",         "lustre",         "gpfs",         "beegfs",    "ceph",
      "cifs",        "smb3",         "smbfs",          "panfs",        "wekafs",    "afs",
      "coda",        "orangefs",     "pvfs2",          "glusterfs",    "gfs2",      "ocfs2",
      "quobyte",     "fuse.sshfs",   "fuse.glusterfs", "fuse.ceph",    "fuse.s3fs", "fuse.rclone",
      "fuse.cvmfs2", "fuse.juicefs", "fuse.gcsfuse",   "fuse.quobyte", "fuse.mfs"};
  const test::TempDir dir;
  std::string mounts;
  for (const std::string& kind : kinds)
    mounts += "server /kinds/" + kind + " " + kind + " rw 0 0\n";
  write_file_atomic(dir / "mounts", mounts);
  for (const std::string& kind : kinds)
    EXPECT_EQ(network_file_system("/kinds/" + kind, dir / "mounts"), kind);
}

}  // namespace
}  // namespace xffl::history
