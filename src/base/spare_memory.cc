#include "xffl/base/spare_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "xffl/base/file.h"

namespace xffl {

namespace fs = std::filesystem;

namespace {
// The page cache holds a file in units of up to this size and drops only whole units: each
// posix_fadvise() call also covers the last unit of the previous call.
constexpr uint64_t kUnitBytes = 2u << 20;

// Opens `path` for reading; returns no descriptor when the file is missing or not regular.
RegularFile open_if_regular(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  return {std::move(fd), static_cast<uint64_t>(info.st_size)};
}

}  // namespace

void SpareMemory::add(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem))
    found.push_back(entry->path());
  std::sort(found.begin(), found.end());
  const std::lock_guard lock(mutex_);
  files_.insert(files_.end(), found.begin(), found.end());
}

// release() leaves no file open: a removed file keeps its disk space while it is open.
void SpareMemory::release(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  while (bytes > 0 && !files_.empty()) {
    const RegularFile file = open_if_regular(files_.front());
    const uint64_t left = file.size_bytes - std::min(file.size_bytes, released_);
    const uint64_t step = std::min(bytes, left);
    const uint64_t begin = released_ - std::min(released_, kUnitBytes);
    const bool ends = step == left;
    released_ += step;
    bytes -= step;
    if (file.size_bytes > 0)  // length 0 means up to the end, the partial last page included
      (void)::posix_fadvise(file.fd.get(), static_cast<off_t>(begin),
                            ends ? 0 : static_cast<off_t>(released_ - begin), POSIX_FADV_DONTNEED);
    if (!ends) continue;
    files_.pop_front();
    released_ = 0;
  }
}

}  // namespace xffl
