// The coordinator's machine refuses threads or file descriptors: a limit is reached.
#include "support/refused_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "run_parts.h"
#include "small_federation.h"
#include "support/thrown.h"

namespace xffl::run {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

TEST(StartThread, TriesAgainUntilTheSystemGrantsTheThread) {
  log::set_console_level(log::Level::kOff);
  test::FakeClock clock;
  bool ran = false;
  {
    const test::RefusedThreads refused(0, 3);
    start_thread([&] { ran = true; }, clock, {}).join();
  }
  EXPECT_TRUE(ran);
  EXPECT_EQ(clock.elapsed(), seconds(30));
}

TEST(LacksDescriptors, OfTheProcessOrOfTheSystem) {
  EXPECT_TRUE(lacks_descriptors(EMFILE));
  EXPECT_TRUE(lacks_descriptors(ENFILE));
  for (const int other : {0, EACCES, EIO, ENOSPC}) EXPECT_FALSE(lacks_descriptors(other)) << other;
}

TEST(StartThread, EndsAtAStop) {
  log::set_console_level(log::Level::kOff);
  test::FakeClock clock;
  std::stop_source stop;
  clock.on_sleep = [&] {
    if (clock.elapsed() >= seconds(60)) stop.request_stop();
  };
  const test::RefusedThreads refused(0, 1000);
  EXPECT_EQ(test::kind_of([&] { start_thread([] {}, clock, stop.get_token()); }),
            ErrorKind::kCancelled);
}

class RefusedThread : public test::SmallFederation {};

// The n-th thread of a run is refused once, for each n.
TEST_F(RefusedThread, CostsARunNothingAfterItsBeginning) {
  int completed = 0;
  for (int granted = 0;; ++granted) {
    std::filesystem::remove_all(run_folder().path());
    const test::RefusedThreads refused(granted, 1);
    try {
      run("");
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("thread"));
      EXPECT_EQ(completed, 0) << "thread " << granted << ": " << error.what();
      continue;
    }
    if (!refused.any()) break;
    ++completed;
    EXPECT_EQ(master_weight(1), 1.0f / 8 + 0.5f);
  }
  EXPECT_GE(completed, 2);
}

}  // namespace
}  // namespace xffl::run
