#include "xffl/transfer/checked_files.h"

namespace xffl::transfer {

void CheckedFiles::once(const std::string& content, const std::function<bool()>& check) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    auto& known = entries_[content];
    if (!known) known = std::make_shared<Entry>();
    entry = known;
  }
  const std::lock_guard lock(entry->mutex);
  if (!entry->right) entry->right = check();
}

}  // namespace xffl::transfer
