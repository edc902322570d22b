#include "list_folder.h"

#include "xffl/base/error.h"

namespace xffl::checkpoint {

std::set<std::string> list_folder(const std::filesystem::path& folder, size_t max_names) {
  std::set<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    if (names.size() == max_names) {
      throw Error(ErrorKind::kRejected,
                  folder.string() + ": holds more than " + std::to_string(max_names) + " files");
    }
    names.insert(entry->path().filename().string());
    entry.increment(error);
  }
  if (error) throw system_error("list " + folder.string(), error.value());
  return names;
}

}  // namespace xffl::checkpoint
