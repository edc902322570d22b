#include "xffl/history/file_system.h"

#include <mntent.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNetwork[] = {
    "nfs",         "nfs4",         "lustre",         "gpfs",         "beegfs",    "ceph",
    "cifs",        "smb3",         "smbfs",          "panfs",        "wekafs",    "afs",
    "coda",        "orangefs",     "pvfs2",          "glusterfs",    "gfs2",      "ocfs2",
    "quobyte",     "fuse.sshfs",   "fuse.glusterfs", "fuse.ceph",    "fuse.s3fs", "fuse.rclone",
    "fuse.cvmfs2", "fuse.juicefs", "fuse.gcsfuse",   "fuse.quobyte", "fuse.mfs"};

struct EndMounts {
  void operator()(FILE* file) const { ::endmntent(file); }
};

bool holds(const fs::path& folder, const fs::path& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace

std::string network_file_system(const fs::path& path, const fs::path& mounts) {
  std::error_code unknown;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path, unknown), unknown);
  if (unknown) return "";
  const std::unique_ptr<FILE, EndMounts> table(::setmntent(mounts.c_str(), "re"));
  if (table == nullptr) return "";
  std::vector<char> buffer(1u << 16);  // one line: layers of containers make long ones
  std::string kind;
  size_t depth = 0;  // of two mounts in one place the later one is seen
  mntent mount{};
  while (::getmntent_r(table.get(), &mount, buffer.data(), static_cast<int>(buffer.size())) !=
         nullptr) {
    const fs::path folder = mount.mnt_dir;
    const auto length = static_cast<size_t>(std::distance(folder.begin(), folder.end()));
    if (!holds(folder, whole) || length < depth) continue;
    depth = length;
    kind = mount.mnt_type;
  }
  return std::find(std::begin(kNetwork), std::end(kNetwork), kind) != std::end(kNetwork) ? kind
                                                                                         : "";
}

}  // namespace xffl::history
