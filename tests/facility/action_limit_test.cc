#include "action_limit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "support/await.h"

namespace xffl::facility {
namespace {

TEST(ActionLimit, StopsTheActionWhenItsTimeIsOver) {
  const ActionLimit limit({}, [] { return true; });
  EXPECT_TRUE(test::await([&] { return limit.token().stop_requested(); }));
  EXPECT_TRUE(limit.is_reached());
}

TEST(ActionLimit, AStopFromOutsideIsNoLimit) {
  std::stop_source stop;
  const ActionLimit limit(stop.get_token(), [] { return false; });
  EXPECT_FALSE(limit.token().stop_requested());
  stop.request_stop();
  EXPECT_TRUE(limit.token().stop_requested());
  EXPECT_FALSE(limit.is_reached());
}

// An exception at the top of a thread ends the process.
TEST(ActionLimit, AnErrorOfItsQuestionIsNoEnd) {
  std::atomic<int> calls{0};
  const ActionLimit limit({}, [&]() -> bool {
    if (++calls == 1) throw std::runtime_error("no memory");
    return true;
  });
  EXPECT_TRUE(test::await([&] { return limit.token().stop_requested(); }));
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace xffl::facility
