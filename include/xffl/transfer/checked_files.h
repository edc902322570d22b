// The local files that match their manifest, so that a model pushed to several facilities is hashed
// once.
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
  /// Calls `check` unless an earlier call for `content_key` returned true. A second caller waits
  /// while the first one checks. Equal keys mean equal content. Passes on the exception of `check`;
  /// after an exception or a false result the next caller checks again.
  void once(const std::string& content_key, const std::function<bool()>& check);

  /// Records that this process hashed the files of `folder` while it wrote them, and that they
  /// match `manifest`. push() does not hash them again until a file is modified.
  void note(const std::filesystem::path& folder, const checkpoint::Manifest& manifest);

 private:
  struct Entry {
    std::mutex mutex;
    bool verified = false;
  };
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

}  // namespace xffl::transfer
