#include "stop_on_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "support/failing_call.h"

namespace xffl {
namespace {

using std::chrono::milliseconds;

TEST(StopOnSignal, RequestsAStopOnTheFirstSignal) {
  EXPECT_EQ(test::in_child([] {
              const StopOnSignal stop;
              ::kill(::getpid(), SIGTERM);
              while (!stop.token().stop_requested()) std::this_thread::sleep_for(milliseconds(1));
              return 7;
            }),
            7);
}

TEST(StopOnSignal, EndsTheProcessOnTheSecondSignal) {
  EXPECT_EQ(test::in_child([] {
              const StopOnSignal stop;
              ::kill(::getpid(), SIGINT);
              while (!stop.token().stop_requested()) std::this_thread::sleep_for(milliseconds(1));
              ::kill(::getpid(), SIGINT);
              std::this_thread::sleep_for(std::chrono::seconds(60));
              return 7;
            }),
            130);
}

// The command has its result already: a signal between the last look and the end of the watch hides
// neither the result nor an error.
TEST(StopOnSignal, DropsASignalAtItsEnd) {
  for (int delay = 0; delay < 60; delay += 5)
    EXPECT_EQ(test::in_child([delay] {
                {
                  const StopOnSignal stop;
                  std::this_thread::sleep_for(milliseconds(delay));
                  ::kill(::getpid(), SIGTERM);
                }
                return 7;
              }),
              7);
}

}  // namespace
}  // namespace xffl
