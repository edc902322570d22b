#include "xffl/base/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>

namespace xffl {
namespace {

TEST(FormatUtc, IsParsedBackByParseUtc) {
  const Clock::UtcTime time{std::chrono::milliseconds(1'772'368'496'789)};
  EXPECT_EQ(format_utc(time), "2026-03-01T12:34:56.789Z");
  EXPECT_EQ(parse_utc(format_utc(time)), time);
}

TEST(ParseUtc, DoesNotDependOnTheTimeZone) {
  const char* before = std::getenv("TZ");
  const std::string zone = before != nullptr ? before : "";
  ::setenv("TZ", "XXX+7", 1);
  ::tzset();
  const auto time = parse_utc("2026-03-01T12:34:56.789Z");
  before != nullptr ? ::setenv("TZ", zone.c_str(), 1) : ::unsetenv("TZ");
  ::tzset();
  EXPECT_EQ(time, Clock::UtcTime{std::chrono::milliseconds(1'772'368'496'789)});
}

TEST(ParseUtc, RejectsOtherFormats) {
  for (const char* text :
       {"", "now", "2026-03-01T12:34:56Z", "2026-03-01T12:34:56.789Z ", "2026-03-01 12:34:56.789Z"})
    EXPECT_FALSE(parse_utc(text)) << text;
}

TEST(SystemClock, StopRequestEndsASleep) {
  SystemClock clock;
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(clock.sleep(std::chrono::hours(1), stop.get_token()));
  EXPECT_TRUE(clock.sleep(std::chrono::milliseconds(1), {}));
}

// A sleep without a length would flood login nodes with polls.
TEST(SystemClock, ASleepTakesItsTime) {
  SystemClock clock;
  const auto before = clock.monotonic();
  EXPECT_TRUE(clock.sleep(std::chrono::milliseconds(200), {}));
  EXPECT_GE(clock.monotonic() - before, std::chrono::milliseconds(200));
}

}  // namespace
}  // namespace xffl
