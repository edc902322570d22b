#include "failure.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/train/foreign_error.h"

namespace xffl::train_app {

void end_process(const std::exception& error) {
  const Error ours = train::translated(error);
  std::fflush(stdout);
  std::fprintf(stderr, "xffl-train: %s error: %s\n", std::string(to_string(ours.kind())).c_str(),
               log::printable(ours.what(), 4000).c_str());
  std::fflush(stderr);
  _exit(exit_code(ours.kind()));
}

}  // namespace xffl::train_app
