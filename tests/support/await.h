// Polls a condition.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace xffl::test {

/// Waits until `condition` returns true; false after `timeout`.
inline bool await(const std::function<bool()>& condition,
                  std::chrono::seconds timeout = std::chrono::seconds(120)) {
  const auto ends = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= ends) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

}  // namespace xffl::test
