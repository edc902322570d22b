#include <gtest/gtest.h>

#include "xffl/transfer/transfer.h"

namespace xffl::transfer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMB = 1'000'000;

TEST(RateMeter, IsZeroBeforeTheSecondSample) {
  RateMeter meter;
  EXPECT_EQ(meter.bytes_per_second(), 0);
  EXPECT_FALSE(meter.time_left());
  meter.add(seconds(100), {0, 50 * kMB, 0});
  EXPECT_EQ(meter.bytes_per_second(), 0);
  EXPECT_FALSE(meter.time_left());
  meter.add(seconds(100), {1 * kMB, 50 * kMB, 1 * kMB});  // no time has passed
  EXPECT_EQ(meter.bytes_per_second(), 0);
  meter.add(seconds(101), {10 * kMB, 50 * kMB, 10 * kMB});
  EXPECT_NEAR(meter.bytes_per_second(), 10e6, 1);
  EXPECT_EQ(meter.time_left(), seconds(4));
}

TEST(RateMeter, ASteadyRateIsExactAtAnySamplingInterval) {
  for (const milliseconds step : {milliseconds(7), milliseconds(330), milliseconds(20'000)}) {
    RateMeter meter;
    for (int i = 0; i < 300; ++i) {
      const uint64_t bytes = static_cast<uint64_t>(i * step.count()) * 1000;  // 1 MB/s
      meter.add(step * i, {bytes, uint64_t{1} << 50, bytes});
    }
    EXPECT_NEAR(meter.bytes_per_second(), 1e6, 1e3) << step.count();
  }
}

TEST(RateMeter, ConvergesWithinSomeTimeConstants) {
  RateMeter meter(seconds(8));
  uint64_t bytes = 0;
  for (int i = 0; i <= 60; ++i) meter.add(seconds(i), {bytes += 10 * kMB, 10'000 * kMB, bytes});
  for (int i = 61; i <= 69; ++i) meter.add(seconds(i), {bytes += kMB, 10'000 * kMB, bytes});
  EXPECT_GT(meter.bytes_per_second(), 2e6);
  EXPECT_LT(meter.bytes_per_second(), 6e6);
  for (int i = 70; i <= 110; ++i) meter.add(seconds(i), {bytes += kMB, 10'000 * kMB, bytes});
  EXPECT_NEAR(meter.bytes_per_second(), 1e6, 1e5);
}

TEST(RateMeter, PresentBytesDoNotCount) {
  RateMeter meter;
  meter.add(seconds(0), {0, 1000 * kMB, 0});
  meter.add(seconds(1), {900 * kMB, 1000 * kMB, 10 * kMB});
  EXPECT_NEAR(meter.bytes_per_second(), 10e6, 1);
  EXPECT_EQ(meter.time_left(), seconds(10));
}

TEST(RateMeter, ASecondTransferCountsFromZero) {
  RateMeter meter;
  meter.add(seconds(0), {0, 50 * kMB, 0});
  meter.add(seconds(1), {10 * kMB, 50 * kMB, 10 * kMB});
  meter.add(seconds(2), {0, 50 * kMB, 0});
  EXPECT_GT(meter.bytes_per_second(), 0);
  EXPECT_LT(meter.bytes_per_second(), 10e6);
  EXPECT_GT(meter.time_left(), seconds(5));
}

TEST(RateMeter, TimeLeftIsEmptyWhenStalledAndZeroWhenFinished) {
  RateMeter meter;
  meter.add(seconds(0), {0, 10 * kMB, 0});
  meter.add(seconds(1), {5 * kMB, 10 * kMB, 5 * kMB});
  meter.add(seconds(3600), {5 * kMB, 10 * kMB, 5 * kMB});
  EXPECT_FALSE(meter.time_left());
  meter.add(seconds(3601), {10 * kMB, 10 * kMB, 10 * kMB});
  EXPECT_EQ(meter.time_left(), seconds(0));
}

}  // namespace
}  // namespace xffl::transfer
