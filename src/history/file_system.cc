#include "xffl/history/file_system.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNetwork[] = {
    "nfs",         "nfs4",         "lustre",         "gpfs",         "beegfs",    "ceph",
    "cifs",        "smb3",         "smbfs",          "panfs",        "wekafs",    "afs",
    "coda",        "orangefs",     "pvfs2",          "glusterfs",    "gfs2",      "ocfs2",
    "quobyte",     "fuse.sshfs",   "fuse.glusterfs", "fuse.ceph",    "fuse.s3fs", "fuse.rclone",
    "fuse.cvmfs2", "fuse.juicefs", "fuse.gcsfuse",   "fuse.quobyte", "fuse.mfs"};

// Blanks and backslashes in a mount point are written "\040".
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_octal = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '7';
    };
    if (text[i] == '\\' && is_octal(i + 1) && is_octal(i + 2) && is_octal(i + 3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

bool holds(const fs::path& folder, const fs::path& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace

std::string network_file_system(const fs::path& path, const fs::path& mounts) {
  std::error_code unknown;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path, unknown), unknown);
  if (unknown) return "";
  std::ifstream table(mounts);
  std::string kind;
  size_t depth = 0;  // of two mounts in one place the later one is seen
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, point, word, type;
    words >> id >> parent >> device >> root >> point;
    while (words >> word && word != "-") {
    }
    if (!(words >> type)) continue;
    const fs::path folder = unescaped(point);
    const auto length = static_cast<size_t>(std::distance(folder.begin(), folder.end()));
    if (!holds(folder, whole) || length < depth) continue;
    depth = length;
    kind = type;
  }
  return std::find(std::begin(kNetwork), std::end(kNetwork), kind) != std::end(kNetwork) ? kind
                                                                                         : "";
}

}  // namespace xffl::history
