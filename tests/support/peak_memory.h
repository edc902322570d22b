// The peak of resident memory of a piece of code, measured in a child process of its own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
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
    } catch (const Error&) {
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

}  // namespace xffl::test
