// journal_appender PATH COUNT [hold]: appends COUNT events; with `hold`, says "ready" and keeps the
// journal open until stdin ends. Exit code 0, or that of the error, which is on stderr.
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

#include "xffl/base/error.h"
#include "xffl/history/store.h"

namespace {

// Files may not grow beyond XFFL_TEST_MAX_FILE_BYTES: as good as a full disk.
void limit_file_size() {
  const char* text = std::getenv("XFFL_TEST_MAX_FILE_BYTES");
  if (text == nullptr) return;
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{std::strtoul(text, nullptr, 10), std::strtoul(text, nullptr, 10)};
  setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 99;
  limit_file_size();
  try {
    const auto journal = xffl::history::Store::open(argv[1]);
    for (long i = 0; i < std::strtol(argv[2], nullptr, 10); ++i)
      journal->append({.kind = "test_event",
                       .round = static_cast<int>(i),
                       .payload = "{\"text\":\"" + std::string(200, 'x') + "\"}"});
    if (argc > 3) {
      std::cout << "ready" << std::endl;
      std::cin.get();
    }
    return 0;
  } catch (const xffl::Error& error) {
    std::cerr << error.what() << std::endl;
    return xffl::exit_code(error.kind());
  }
}
