// Kills of a coordinator at random instants.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <thread>

namespace xffl::test {

inline int from_environment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

/// Sends SIGKILL to the process that `start` returns, up to six seconds after its start,
/// XFFL_CAMPAIGN times (default: 4). After each fourth kill, `complete` completes the run, checks
/// it, with the number of kills as context, and forgets it. XFFL_CAMPAIGN_SEED chooses the
/// instants.
template <class Start, class Complete>
void kill_at_random_instants(const Start& start, const Complete& complete) {
  const int wanted = from_environment("XFFL_CAMPAIGN", 4);
  std::mt19937 random(static_cast<unsigned>(from_environment("XFFL_CAMPAIGN_SEED", 11)));
  for (int kills = 0; kills < wanted;) {
    for (int i = 0; i < 4 && kills < wanted; ++i, ++kills) {
      auto run = start();
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 6000));
      run.kill();
    }
    complete(std::to_string(kills) + " kills");
    if (testing::Test::HasFatalFailure()) return;
  }
  std::cout << wanted << " kills at random instants\n";
}

}  // namespace xffl::test
