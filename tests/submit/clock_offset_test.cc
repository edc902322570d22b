#include "xffl/submit/clock_offset.h"

#include <gtest/gtest.h>

namespace xffl::submit {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Clock::UtcTime at(milliseconds time) {
  return Clock::UtcTime(std::chrono::duration_cast<Clock::UtcTime::duration>(time));
}

TEST(ClockFilter, HasNothingBeforeTheFirstAnswer) { EXPECT_FALSE(ClockFilter().best()); }

TEST(ClockFilter, TheOffsetIsThatAtHalfTheRoundTrip) {
  ClockFilter filter;
  filter.add(1100, at(seconds(1000)), at(seconds(1004)));
  EXPECT_EQ(filter.best(), (ClockOffset{.offset = 98.5, .error = 2.5}));
}

TEST(ClockFilter, TheShortestOfTheLastNineRoundTripsCounts) {
  ClockFilter filter;
  filter.add(1000, at(milliseconds(1'000'000)), at(milliseconds(1'000'200)));
  for (int i = 1; i <= 8; ++i) filter.add(2000 + i, at(seconds(1000 + i)), at(seconds(1010 + i)));
  EXPECT_NEAR(filter.best()->offset, 0.4, 1e-6);
  EXPECT_NEAR(filter.best()->error, 0.6, 1e-6);
  filter.add(2009, at(seconds(1009)), at(seconds(1019)));
  EXPECT_NEAR(filter.best()->offset, 995.5, 1e-6) << "the short round trip is too old now";
}

TEST(ClockFilter, AClockThatWasSetDuringTheAnswerTellsNothing) {
  ClockFilter filter;
  filter.add(1000, at(seconds(1000)), at(seconds(900)));
  EXPECT_FALSE(filter.best());
}

}  // namespace
}  // namespace xffl::submit
