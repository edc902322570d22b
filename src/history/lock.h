// The writer's lock: flock() on "<journal>.lock", a file that stays and says who holds it.
//
// While held the file is one line of JSON {host, pid, start_ticks, since}; a clean end empties it.
// The lock is the flock, not the text: on a local file system it ends with its process, however
// that died, and stale text is ignored. On a network file system flock may reach no further than
// one host, so text of another host counts as a holder until somebody removes the file.
#pragma once

#include <filesystem>
#include <string>

#include "xffl/base/file.h"

namespace xffl::history {

class WriterLock {
 public:
  /// Throws kBusy (the holder, and what to do), kIo.
  explicit WriterLock(const std::filesystem::path& journal);
  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

std::filesystem::path lock_path(const std::filesystem::path& journal);

}  // namespace xffl::history
