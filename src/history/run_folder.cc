#include "xffl/history/run_folder.h"

#include <cstdio>

#include "xffl/base/error.h"

namespace xffl::history {

namespace fs = std::filesystem;

namespace {

std::string format_number(const char* format, int number) {
  char text[32];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

}  // namespace

fs::path RunFolder::round(int round) const { return path_ / format_number("r%04d", round); }

std::optional<RunName> latest_run(const fs::path& runs) {
  int newest = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(runs, none)) {
    const std::string name = entry.path().filename().string();
    if (name.size() < 4 || name.size() > 9 ||
        name.find_first_not_of("0123456789") != std::string::npos)
      continue;
    newest = std::max(newest, std::stoi(name));
  }
  if (newest == 0) return std::nullopt;
  return RunName(format_number("%04d", newest));
}

RunName next_run(const fs::path& runs) {
  const auto latest = latest_run(runs);
  return RunName(format_number("%04d", latest ? std::stoi(latest->str()) + 1 : 1));
}

}  // namespace xffl::history
