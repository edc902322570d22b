#include <gtest/gtest.h>

#include <vector>

#include "connector.h"
#include "support/fake_clock.h"

namespace xffl::remote {
namespace {

using namespace std::chrono_literals;

TEST(ConnectionLimits, AllowsSixConnectionsInAMinute) {
  test::FakeClock clock;
  ConnectionLimits limits(clock);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(limits.wait("a"), 0ns);
    limits.start("a", 1h);
    limits.succeeded("a");
    clock.advance(1s);
  }
  EXPECT_EQ(limits.wait("a"), 54s);
  EXPECT_EQ(limits.wait("b"), 0ns);  // each host has its own limits
  clock.advance(54s);
  EXPECT_EQ(limits.wait("a"), 0ns);
}

// Two facilities behind one host count together, including attempts that still wait.
TEST(ConnectionLimits, CountsAnAttemptThatWaits) {
  test::FakeClock clock;
  ConnectionLimits limits(clock);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(limits.start("a", 0ns), 0ns);
  EXPECT_EQ(limits.start("a", 3s), 60s) << "too long: not counted";
  EXPECT_EQ(limits.start("a", 60s), 60s);
  EXPECT_EQ(limits.wait("a"), 60s) << "the second of the six attempts has the same age";
}

// The host sees an attempt at the end of its wait.
TEST(ConnectionLimits, AttemptsThatWaitCountInTheirOwnMinute) {
  test::FakeClock clock;
  ConnectionLimits limits(clock);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(limits.start("a", 0ns), 0ns);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(limits.start("a", 60s), 60s);
  EXPECT_EQ(limits.wait("a"), 120s) << "six attempts begin after a minute";
}

TEST(ConnectionLimits, AllowsSixtyConnectionsInAnHour) {
  test::FakeClock clock;
  ConnectionLimits limits(clock);
  int made = 0;
  for (int second = 0; second < 3600; ++second) {
    while (limits.wait("a") == 0ns) {
      limits.start("a", 1h);
      ++made;
    }
    clock.advance(1s);
  }
  EXPECT_EQ(made, 60);
  EXPECT_EQ(limits.wait("a"), 0ns);  // the first attempt is an hour old
}

// For optional connections.
TEST(ConnectionLimits, HasRoomToSpareUpToHalfOfEachLimit) {
  test::FakeClock clock;
  ConnectionLimits limits(clock);
  EXPECT_TRUE(limits.has_spare("a"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(limits.has_spare("a")) << i;
    limits.start("a", 0ns);
  }
  EXPECT_FALSE(limits.has_spare("a"));
  EXPECT_EQ(limits.wait("a"), 0ns) << "a necessary connection";
  EXPECT_TRUE(limits.has_spare("b"));
  clock.advance(1min);
  EXPECT_TRUE(limits.has_spare("a"));
  for (int i = 3; i < 30; ++i) {
    clock.advance(1min);
    EXPECT_TRUE(limits.has_spare("a")) << i;
    limits.start("a", 0ns);
  }
  clock.advance(1min);
  EXPECT_FALSE(limits.has_spare("a")) << "of the hour";
  EXPECT_EQ(limits.wait("a"), 0ns);
  clock.advance(1h - 29min);
  EXPECT_TRUE(limits.has_spare("a")) << "the first three attempts are an hour old";
  limits.start("a", 0ns);
  limits.failed("a");
  EXPECT_FALSE(limits.has_spare("a")) << "the host pauses";
}

TEST(ConnectionLimits, PausesDoubleAfterFailures) {
  test::FakeClock clock;
  ConnectionLimits limits(clock);
  auto last = 0ns;
  std::vector<std::chrono::milliseconds> pauses = {1s, 2s, 4s, 8s, 16s, 32s};
  pauses.resize(40, 60s);
  for (const std::chrono::milliseconds pause : pauses) {
    clock.advance(2min);
    limits.start("a", 1h);
    limits.failed("a");
    EXPECT_GE(limits.wait("a"), pause * 3 / 4);
    EXPECT_LE(limits.wait("a"), pause * 5 / 4);
    EXPECT_NE(limits.wait("a"), last);
    last = limits.wait("a");
  }
  clock.advance(2min);
  limits.succeeded("a");
  limits.start("a", 1h);
  limits.failed("a");
  EXPECT_LE(limits.wait("a"), 1250ms);
}

}  // namespace
}  // namespace xffl::remote
