// Which local files were found to be as their manifest says, so that a model that goes to many
// facilities is hashed once.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "xffl/checkpoint/manifest.h"

namespace xffl::transfer {

/// Thread-safe.
class CheckedFiles {
 public:
  /// Calls `check` unless it has returned true for `content` before; who comes while another does
  /// it waits for that one. `content` names a file's content: the same text is the same bytes.
  /// Throws what `check` throws; then, and when it returns false, the next one checks again.
  void once(const std::string& content, const std::function<bool()>& check);

  /// The files of `folder` were hashed while they were written, as `manifest` says, by this
  /// process: as long as nobody touches them, push() need not do it again.
  void note(const std::filesystem::path& folder, const checkpoint::Manifest& manifest);

 private:
  struct Entry {
    std::mutex mutex;
    bool right = false;
  };
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

}  // namespace xffl::transfer
