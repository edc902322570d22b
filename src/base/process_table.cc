#include "xffl/base/process_table.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {

namespace fs = std::filesystem;

std::optional<ProcessInfo> process_info(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  std::string text;
  try {
    text = read_file("/proc/" + std::to_string(pid) + "/stat", 1u << 16);
  } catch (const Error&) {
    return std::nullopt;  // also when the process ends between open and read
  }
  // The program's name, field 2, may hold any character: fields are counted from the last ')'.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessInfo info{.pid = pid};
  pid_t parent = 0;
  if (!(fields >> info.state >> parent >> info.group >> info.session)) return std::nullopt;
  std::string skipped;
  for (int index = 7; index <= 21; ++index) fields >> skipped;
  if (!(fields >> info.start_ticks)) return std::nullopt;
  return info;
}

std::vector<ProcessInfo> list_processes() {
  std::vector<ProcessInfo> processes;
  std::error_code ended;
  for (fs::directory_iterator entry("/proc", ended), end; !ended && entry != end;
       entry.increment(ended)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [rest, problem] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (problem != std::errc() || rest != name.data() + name.size()) continue;
    if (const auto info = process_info(pid)) processes.push_back(*info);
  }
  return processes;
}

}  // namespace xffl
