// A launcher as a program of its own, so that a test can read its streams and kill it:
// launch_ranks_helper WORLD_SIZE GRACE_MS PREFIX(0|1) PROGRAM ARGUMENT...
// With the variable XFFL_TEST_SIGNAL_GRACE_MS the grace after a signal differs.
#include <cstdio>
#include <cstdlib>

#include "xffl/base/error.h"
#include "xffl/launch/ranks.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  xffl::launch::RankSpec spec;
  spec.world_size = std::atoi(argv[1]);
  spec.grace = spec.signal_grace = std::chrono::milliseconds(std::atoi(argv[2]));
  if (const char* text = std::getenv("XFFL_TEST_SIGNAL_GRACE_MS"))
    spec.signal_grace = std::chrono::milliseconds(std::atoi(text));
  spec.prefix_output = argv[3][0] == '1';
  spec.argv.assign(argv + 4, argv + argc);
  try {
    return xffl::launch::run_ranks(spec, {});
  } catch (const xffl::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return xffl::exit_code(error.kind());
  }
}
