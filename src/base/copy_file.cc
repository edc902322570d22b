#include "xffl/base/copy_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {

namespace fs = std::filesystem;

void copy_synced(const fs::path& from, const fs::path& to) {
  std::error_code problem;
  fs::copy_file(from, to, problem);
  if (problem) throw system_error("copy " + from.string(), problem.value());
  const UniqueFd copy = open_file(to, O_RDONLY);
  if (::fsync(copy.get()) != 0) throw system_error("fsync " + to.string(), errno);
}

}  // namespace xffl
