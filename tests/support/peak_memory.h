// The peak of resident memory of a piece of code, measured in a child process of its own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>

#include "xffl/base/error.h"

namespace xffl::test {

inline long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  return -1;
}

/// The growth of the peak in KiB while `body` runs; -1 when it failed. Mapped files count.
inline long growth_in_child(const std::function<void()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    long growth = -1;
    try {
      std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak
      const long before = peak_kib();
      body();
      growth = peak_kib() - before;
    } catch (const Error& e) {
      std::cerr << "the measured code failed: " << e.what() << '\n';
      growth = -1;
    }
    const bool sent = ::write(ends[1], &growth, sizeof growth) == sizeof growth;
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  long growth = -1;
  const bool read = ::read(ends[0], &growth, sizeof growth) == sizeof growth;
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return read ? growth : -1;
}

/// The lowest growth of up to three measurements; ends after the first one below `allowed`. The
/// kernel counts pages per processor and maps more than was asked for, so that one measurement may
/// be too large. Code whose memory grows with the model exceeds the bound each time.
inline long lowest_growth_in_child(long allowed, const std::function<void()>& body) {
  long lowest = growth_in_child(body);
  for (int i = 0; i < 2 && lowest >= allowed; ++i) {
    std::cerr << "measured " << lowest << " KiB of " << allowed << " KiB; measuring again\n";
    lowest = std::min(lowest, growth_in_child(body));
  }
  return lowest;
}

}  // namespace xffl::test
