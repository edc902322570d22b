#include "xffl/base/growing_files.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "xffl/base/error.h"

namespace xffl {

void GrowingFiles::begin(const std::string& name, const std::filesystem::path& path,
                         uint64_t size_bytes) {
  Entry entry;
  entry.file = {name, size_bytes, 0};
  entry.path = path;
  entry.fd = open_file(path, O_RDONLY | O_NOFOLLOW);
  {
    const std::lock_guard lock(mutex_);
    if (!entries_.empty()) entries_.back().file.written_bytes = entries_.back().file.size_bytes;
    entries_.push_back(std::move(entry));
  }
  changed_.notify_all();
}

void GrowingFiles::written(uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    File& file = entries_.back().file;
    file.written_bytes = std::max(file.written_bytes, std::min(bytes, file.size_bytes));
  }
  changed_.notify_all();
}

void GrowingFiles::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

std::optional<GrowingFiles::File> GrowingFiles::wait(size_t index, uint64_t bytes,
                                                     const std::stop_token& stop) const {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] {
    if (index >= entries_.size()) return false;
    const File& file = entries_[index].file;
    return file.written_bytes >= std::min(bytes, file.size_bytes);
  };
  changed_.wait(lock, stop, [&] { return ended_ || is_there(); });
  if (stop.stop_requested() || !is_there()) return std::nullopt;
  return entries_[index].file;
}

void GrowingFiles::read(size_t index, uint64_t offset, std::span<std::byte> out) const {
  const Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    entry = &entries_.at(index);
  }
  if (read_at(entry->fd.get(), offset, out, entry->path) != out.size())
    throw Error(ErrorKind::kIo,
                entry->path.string() + " has become shorter while it was being sent");
}

}  // namespace xffl
