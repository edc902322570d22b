// A simulated power loss that discards unsynced data (see lossy_disk.cc). Needs no privileges.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "support/temp_dir.h"

namespace xffl::test {

/// Inode and birth time of `path` relative to the folder `fd`, or of `fd` itself for an empty
/// `path`. Does not follow a link. Empty when the file does not exist.
inline std::string disk_identity(int fd, const char* path) {
  struct statx info {};
  if (::statx(fd, path, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &info) != 0)
    return "";
  return std::to_string(info.stx_ino) + "-" + std::to_string(info.stx_btime.tv_sec) + "." +
         std::to_string(info.stx_btime.tv_nsec);
}

class LossyDisk {
 public:
  /// The disk holds the folder `root`; `library` is the path of the library lossy_disk.cc.
  LossyDisk(std::filesystem::path root, std::filesystem::path library)
      : root_(std::move(root)), library_(std::move(library)) {}

  /// The environment for programs that write to `root`.
  std::map<std::string, std::string> environment() const {
    return {{"LD_PRELOAD", library_.string()},
            {"XFFL_LOSSY_ROOT", std::filesystem::canonical(root_).string()},
            {"XFFL_LOSSY_NOTES", notes_.path().string()}};
  }

  /// Reduces `root` to its synced state; returns the number of files that lost data.
  int lose_power() const {
    const TempDir saved;
    int lost = restore(disk_identity(AT_FDCWD, root_.c_str()), root_, saved / "root");
    for (const auto& entry : std::filesystem::directory_iterator(root_))
      std::filesystem::remove_all(entry.path());
    for (const auto& entry : std::filesystem::directory_iterator(saved / "root"))
      std::filesystem::copy(
          entry.path(), root_ / entry.path().filename(),
          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    return lost;
  }
  void forget() const {
    for (const auto& entry : std::filesystem::directory_iterator(notes_.path()))
      std::filesystem::remove(entry.path());
  }

 private:
  int restore(const std::string& identity, const std::filesystem::path& was,
              const std::filesystem::path& to) const {
    namespace fs = std::filesystem;
    fs::create_directories(to);
    fs::permissions(to, fs::perms::owner_all);
    int lost = 0;
    std::ifstream names(notes_ / ("names-" + identity));
    char kind = 0;
    std::string child, name, target;
    while (names >> kind >> child && names.get() == ' ' && std::getline(names, name)) {
      if (kind == 'd') {
        lost += restore(child, was / name, to / name);
      } else if (kind == 'l') {
        std::getline(names, target);
        fs::create_symlink(target, to / name);
      } else {
        const fs::path content = notes_ / ("file-" + child);
        if (fs::exists(content))
          fs::copy_file(content, to / name);
        else
          std::ofstream(to / name).flush();  // a synced name with unsynced content
        fs::permissions(to / name, fs::perms::owner_read | fs::perms::owner_write);
        std::error_code gone;
        const auto now = fs::file_size(was / name, gone);
        if (gone || now != fs::file_size(to / name)) ++lost;
      }
    }
    return lost;
  }

  std::filesystem::path root_, library_;
  TempDir notes_;
};

}  // namespace xffl::test
