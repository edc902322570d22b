#include "xffl/base/space.h"

#include <system_error>

#include "xffl/base/error.h"

namespace xffl {

namespace fs = std::filesystem;

void require_space(const std::string& where, uint64_t missing, uint64_t free) {
  const uint64_t needed = with_margin(missing);
  if (free >= needed) return;
  throw Error(ErrorKind::kIo, "not enough space in " + where + ": " + std::to_string(needed) +
                                  " bytes are needed, " + std::to_string(free) +
                                  " are free; free at least " + std::to_string(needed - free) +
                                  " bytes (or raise the quota) and run again");
}

void require_space(const fs::path& folder, uint64_t missing) {
  std::error_code problem;
  fs::path there = fs::absolute(folder.empty() ? "." : folder, problem);
  if (problem) return;
  while (!fs::exists(there, problem) && there.has_relative_path()) there = there.parent_path();
  const fs::space_info space = fs::space(there, problem);
  if (!problem) require_space(there.string(), missing, space.available);
}

}  // namespace xffl
