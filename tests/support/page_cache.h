// The part of a file in the page cache.
#pragma once

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "xffl/base/file.h"

namespace xffl::test {

/// True when the page cache of files in `folder` can be dropped; false in tmpfs, where it is the
/// file.
inline bool has_disk(const std::filesystem::path& folder) {
  struct statfs about {};
  return ::statfs(folder.c_str(), &about) == 0 && about.f_type != TMPFS_MAGIC &&
         about.f_type != RAMFS_MAGIC;
}

inline uint64_t bytes_in_memory(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((file.bytes().size() + page - 1) / page);
  auto* begin = const_cast<std::byte*>(file.bytes().data());
  if (::mincore(begin, file.bytes().size(), pages.data()) != 0) return UINT64_MAX;
  return page * static_cast<uint64_t>(
                    std::count_if(pages.begin(), pages.end(), [](auto each) { return each & 1; }));
}

}  // namespace xffl::test
