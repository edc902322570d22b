#include "state_folder.h"

#include <exception>
#include <system_error>

#include "agree.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateName = "state.json";
constexpr uint64_t kMaxStateBytes = 16 << 20;

void put_in_place(const StateFolder& folder, const std::function<bool()>& may_stay) {
  std::error_code none;
  if (may_stay && fs::exists(folder.target, none) && may_stay()) {
    fs::remove_all(folder.temporary, none);
    return;
  }
  fs::remove_all(folder.target, none);
  rename_durable(folder.temporary, folder.target);
}

}  // namespace

void write_state_folder(comm::Group& group, at::Device device, const StateFolder& folder,
                        const StateParts& parts, const std::vector<UnitBuffers>& buffers,
                        const std::function<Json()>& document,
                        const std::function<bool()>& may_stay) {
  std::error_code none;
  try {
    on_first_rank(group, device, [&] {
      fs::remove_all(folder.temporary, none);
      make_dirs(folder.temporary);
    });
    on_all_ranks_at_length(group, device, [&] { parts.write(folder.temporary, buffers); });
    on_first_rank(group, device, [&] {
      write_file_atomic(folder.temporary / kStateName, document().dump(1) + "\n");
      fsync_dir(folder.temporary);
      put_in_place(folder, may_stay);
    });
  } catch (const std::exception&) {
    if (group.rank() == 0) fs::remove_all(folder.temporary, none);
    throw;
  }
}

std::vector<fs::path> entries_in(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  // A loop over directory_iterator throws what goes wrong behind the first entry.
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    entries.push_back(entry->path());
  return entries;
}

Json read_state_file(const fs::path& folder) {
  const fs::path path = folder / kStateName;
  return parse_json(read_file(path, kMaxStateBytes), path.string(),
                    {.max_bytes = kMaxStateBytes, .max_depth = 6});
}

}  // namespace xffl::train
