#include "xffl/base/clock.h"

#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <mutex>

namespace xffl {

Clock::MonotonicTime SystemClock::monotonic() const { return std::chrono::steady_clock::now(); }

Clock::UtcTime SystemClock::utc() const { return std::chrono::system_clock::now(); }

bool SystemClock::sleep(std::chrono::nanoseconds duration, std::stop_token stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  wake.wait_for(lock, stop, duration, [] { return false; });
  return !stop.stop_requested();
}

std::string format_utc(Clock::UtcTime time) {
  using namespace std::chrono;
  const auto millis = duration_cast<milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(millis / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  char text[48];
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(millis % 1000));
  return text;
}

std::optional<Clock::UtcTime> parse_utc(std::string_view text) {
  std::tm parts{};
  int millis = 0, end = 0;
  const std::string owned(text);
  if (std::sscanf(owned.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &millis,
                  &end) != 7 ||
      end != static_cast<int>(text.size()))
    return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return std::chrono::system_clock::from_time_t(timegm(&parts)) + std::chrono::milliseconds(millis);
}

}  // namespace xffl
