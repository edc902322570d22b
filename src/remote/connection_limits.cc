#include "connection_limits.h"

#include <algorithm>

namespace xffl::remote {
namespace {

using namespace std::chrono_literals;

constexpr size_t kPerMinute = 6;
constexpr size_t kPerHour = 60;
constexpr auto kFirstPause = 1000ms;
constexpr auto kLongestPause = 60'000ms;

}  // namespace

std::chrono::nanoseconds ConnectionLimits::wait(const std::string& host) const {
  const std::lock_guard lock(mutex_);
  return wait_locked(host);
}

std::chrono::nanoseconds ConnectionLimits::wait_locked(const std::string& host) const {
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return 0ns;
  const auto& attempts = found->second.attempts;
  Clock::MonotonicTime free = found->second.not_before;
  if (attempts.size() >= kPerMinute)
    free = std::max(free, attempts[attempts.size() - kPerMinute] + 1min);
  if (attempts.size() >= kPerHour) free = std::max(free, attempts[attempts.size() - kPerHour] + 1h);
  return std::max<std::chrono::nanoseconds>(0ns, free - clock_.monotonic());
}

std::chrono::nanoseconds ConnectionLimits::start(const std::string& host,
                                                 std::chrono::nanoseconds max_wait) {
  const std::lock_guard lock(mutex_);
  const auto wait = wait_locked(host);
  if (wait > max_wait) return wait;
  auto& attempts = hosts_[host].attempts;
  attempts.push_back(clock_.monotonic() + wait);
  if (attempts.size() > kPerHour) attempts.pop_front();
  return wait;
}

void ConnectionLimits::succeeded(const std::string& host) {
  const std::lock_guard lock(mutex_);
  hosts_[host].failures = 0;
}

void ConnectionLimits::failed(const std::string& host) {
  const std::lock_guard lock(mutex_);
  Host& state = hosts_[host];
  const auto pause = std::min<std::chrono::milliseconds>(
      kLongestPause, kFirstPause * (1 << std::min(state.failures, 6)));
  ++state.failures;
  std::uniform_real_distribution<double> share(0.75, 1.25);
  state.not_before = clock_.monotonic() +
                     std::chrono::duration_cast<std::chrono::nanoseconds>(pause * share(jitter_));
}

}  // namespace xffl::remote
