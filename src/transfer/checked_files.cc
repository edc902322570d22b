#include "xffl/transfer/checked_files.h"

#include "local_file.h"

namespace xffl::transfer {

void CheckedFiles::once(const std::string& content_key, const std::function<bool()>& check) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    auto& known = entries_[content_key];
    if (!known) known = std::make_shared<Entry>();
    entry = known;
  }
  const std::lock_guard lock(entry->mutex);
  if (!entry->verified) entry->verified = check();
}

void CheckedFiles::note(const std::filesystem::path& folder, const checkpoint::Manifest& manifest) {
  for (const checkpoint::ManifestFile& file : manifest.files)
    once(LocalFile(folder / file.name, file).content_key(), [] { return true; });
}

}  // namespace xffl::transfer
