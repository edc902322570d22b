#include "xffl/history/work_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include "store_parts.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/history/run_history.h"

namespace xffl::history {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = ".e";
constexpr std::string_view kUpdate = "update";  // a fetched update: its folder, its block hashes

// Where the mark of the epoch begins, and the end of its digits.
struct Mark {
  size_t begin = 0, end = 0;
  int64_t epoch = 0;
};

std::optional<Mark> find_mark(const std::string& name) {
  for (size_t at = name.find(kMark); at != std::string::npos; at = name.find(kMark, at + 1)) {
    Mark mark{.begin = at, .end = 0, .epoch = 0};
    const char* digits = name.data() + at + kMark.size();
    const char* last = name.data() + name.size();
    const auto [rest, problem] = std::from_chars(digits, last, mark.epoch);
    mark.end = static_cast<size_t>(rest - name.data());
    if (problem == std::errc() && mark.epoch > 0 && (rest == last || *rest == '.')) return mark;
  }
  return std::nullopt;
}

// Puts a copy in the place of a part file. Without space for the copy, or with a bad sector in the
// file, the fetch begins the file again: no single facility's update keeps a run from its start.
void replace_by_copy(const fs::path& file) {
  const fs::path copy = file.string() + ".copy";
  try {
    require_space(file.parent_path(), fs::file_size(file));
    fs::copy_file(file, copy, fs::copy_options::overwrite_existing);
    rename_durable(copy, file);
  } catch (const std::exception& error) {
    log::warning("a part file could not be copied: the fetch begins the file again",
                 {{"path", file.string()}, {"problem", error.what()}});
    std::error_code none;
    fs::remove(copy, none);
    fs::remove(file);
  }
}

// A frozen coordinator may have these files open for writing: a copy is another file.
void copy_unfinished_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension() == ".part") files.push_back(entry);
  for (const fs::path& file : files) replace_by_copy(file);
}

// Calls `handle` for each entry with an epoch in its name, in the folder itself.
using Handle = std::function<void(const fs::path&, const Mark&)>;
void for_each_work_file(const fs::path& folder, const Handle& handle) {
  std::error_code problem;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem))
    found.push_back(entry->path());
  if (problem && problem != std::errc::no_such_file_or_directory)
    throw system_error("list " + folder.string(), problem.value());
  std::vector<std::pair<fs::path, Mark>> marked;
  for (const fs::path& path : found)
    if (const auto mark = find_mark(path.filename().string())) marked.emplace_back(path, *mark);
  std::sort(marked.begin(), marked.end(), [](const auto& a, const auto& b) {
    return a.second.epoch > b.second.epoch;  // the newest work comes first
  });
  for (const auto& [path, mark] : marked) handle(path, mark);
}

void for_each_work_file(const RunFolder& folder, int first_round, const Handle& handle) {
  for_each_work_file(folder.path(), handle);
  // A loss of power may bring back the work files of the first models.
  if (first_round > 0) for_each_work_file(folder.round(0), handle);
  for (int round = first_round; fs::is_directory(folder.round(round)); ++round) {
    for_each_work_file(folder.round(round), handle);
    for (const auto& entry : fs::directory_iterator(folder.round(round)))
      if (entry.is_directory() && !entry.is_symlink()) for_each_work_file(entry.path(), handle);
  }
}

}  // namespace

std::string work_suffix(int64_t epoch) { return std::string(kMark) + std::to_string(epoch); }

fs::path work_name(const fs::path& path, int64_t epoch) {
  return path.string() + work_suffix(epoch);
}

std::optional<int64_t> epoch_of(const std::string& name) {
  const auto mark = find_mark(name);
  return mark ? std::optional(mark->epoch) : std::nullopt;
}

bool is_newest_epoch(const fs::path& journal, int64_t epoch) {
  if (!fs::exists(journal)) return false;
  bool is_newest = false;
  read_snapshot(journal, [&](Database& database) {
    is_newest = read_epoch(database) == epoch;
    return std::vector<StoredEvent>();
  });
  return is_newest;
}

void replace_folder(const fs::path& from, const fs::path& to) {
  const auto rename_with = [&](unsigned flags) {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
  };
  int problem = rename_with(RENAME_NOREPLACE);
  const bool exchanges = problem == EEXIST;
  if (exchanges) problem = rename_with(RENAME_EXCHANGE);
  if (problem == EINVAL || problem == ENOSYS) {  // this file system has no such flags
    fs::remove_all(to);
    problem = ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }
  if (problem != 0) throw system_error("rename " + from.string() + " to " + to.string(), problem);
  fsync_dir(to.parent_path());
  fs::remove_all(from);
}

int first_round_in_work(const RunHistory& history) {
  return std::max(0, history.done().rounds_published - 1);
}

void take_over_work_files(const RunFolder& folder, int first_round, int64_t epoch,
                          UnfinishedFiles unfinished) {
  for_each_work_file(folder, first_round, [&](const fs::path& path, const Mark& mark) {
    if (mark.epoch >= epoch) return;
    const std::string name = path.filename().string();
    const fs::path own = path.parent_path() /
                         (name.substr(0, mark.begin) + work_suffix(epoch) + name.substr(mark.end));
    // Block hashes alone are left when the update got its final name.
    const bool is_whole = fs::is_directory(path) ||
                          fs::exists(path.parent_path() / name.substr(0, mark.end)) ||
                          fs::exists(work_name(path.parent_path() / kUpdate, epoch));
    if (name.substr(0, mark.begin) == kUpdate && is_whole && !fs::exists(own)) {
      rename_durable(path, own);
      if (unfinished == UnfinishedFiles::kCopy && fs::is_directory(own)) copy_unfinished_files(own);
      return;
    }
    fs::remove_all(path);
    log::debug("a work file of an earlier coordinator is removed", {{"path", path.string()}});
  });
}

void remove_work_files(const RunFolder& folder, int first_round, int64_t epoch) {
  try {
    for_each_work_file(folder, first_round, [&](const fs::path& path, const Mark& mark) {
      std::error_code none;
      if (mark.epoch == epoch) fs::remove_all(path, none);
    });
  } catch (const std::exception& error) {
    log::debug("work files are left", {{"problem", error.what()}});
  }
}

}  // namespace xffl::history
