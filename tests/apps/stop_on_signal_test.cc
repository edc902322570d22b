#include "stop_on_signal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "support/failing_call.h"
#include "xffl/base/error.h"

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

// stderr becomes a full pipe, as that of `xffl run 2>&1 | less`.
void stop_reading_stderr() {
  int ends[2];
  if (::pipe(ends) != 0) ::_exit(99);
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  while (::write(ends[1], "x", 1) == 1) {
  }
  ::fcntl(ends[1], F_SETFL, 0);
  ::dup2(ends[1], STDERR_FILENO);
}

bool await_stop(const StopOnSignal& stop) {
  for (int i = 0; i < 20'000 && !stop.token().stop_requested(); ++i)
    std::this_thread::sleep_for(milliseconds(1));
  return stop.token().stop_requested();
}

TEST(StopOnSignal, NeedsNoReaderOfItsMessage) {
  EXPECT_EQ(test::in_child([] {
              stop_reading_stderr();
              const StopOnSignal stop;
              ::kill(::getpid(), SIGTERM);
              ::_exit(await_stop(stop) ? 7 : 8);
              return 0;
            }),
            7);
}

// Other threads may wait for the reader for ever.
TEST(StopOnSignal, EndsAProcessWhoseOutputNobodyReads) {
  for (const int signals : {1, 2})
    EXPECT_EQ(test::in_child([signals] {
                stop_reading_stderr();
                const StopOnSignal stop("detaching", std::chrono::seconds(signals == 1 ? 1 : 60));
                ::kill(::getpid(), SIGTERM);
                if (!await_stop(stop)) ::_exit(8);
                if (signals == 2) ::kill(::getpid(), SIGTERM);
                ::alarm(20);  // ends the process in place of a signal that is not noticed
                const std::string line(100, 'x');
                [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), 100);
                return 9;
              }),
              signals == 1 ? exit_code(ErrorKind::kCancelled) : 130);
}

// The command prints its error then, and the reader of the error may stand still.
TEST(StopOnSignal, ThePatienceGoesOnAfterTheEndOfTheWatch) {
  EXPECT_EQ(test::in_child([] {
              {
                const StopOnSignal stop("detaching", std::chrono::seconds(1));
                ::kill(::getpid(), SIGTERM);
                if (!await_stop(stop)) return 8;
              }
              ::alarm(20);  // ends a process that waits on
              std::this_thread::sleep_for(std::chrono::seconds(60));
              return 9;
            }),
            exit_code(ErrorKind::kCancelled));
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

// nohup and `trap '' HUP` start a program so.
TEST(StopOnSignal, LeavesAnIgnoredHangupAlone) {
  EXPECT_EQ(test::in_child([] {
              ::signal(SIGHUP, SIG_IGN);
              const StopOnSignal stop;
              ::kill(::getpid(), SIGHUP);
              std::this_thread::sleep_for(milliseconds(500));  // ten looks
              if (stop.token().stop_requested()) return 8;
              ::kill(::getpid(), SIGTERM);
              return await_stop(stop) ? 7 : 9;
            }),
            7);
}

}  // namespace
}  // namespace xffl
