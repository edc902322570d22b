#include "xffl/upkeep/credential_watch.h"

#include <gtest/gtest.h>

namespace xffl::upkeep {
namespace {

using std::chrono::minutes;

TEST(CertificateWarnings, AreDueOnceTwoHoursAheadAndOnceHalfAnHourAhead) {
  CertificateWarnings warnings;
  const FacilityName alba("alba"), brno("brno");
  const Clock::UtcTime start{std::chrono::hours(1000)}, ends = start + minutes(300);
  std::map<int, int> due;  // minute -> minutes left
  for (int minute = 0; minute < 320; ++minute)
    if (const auto left = warnings.due(alba, ends, start + minutes(minute)))
      due[minute] = static_cast<int>(left->count());
  EXPECT_EQ(due, (std::map<int, int>{{180, 120}, {270, 30}}));
  EXPECT_TRUE(warnings.due(brno, ends, start + minutes(200))) << "each facility by itself";
}

TEST(CertificateWarnings, AreDueAgainForANewCertificate) {
  CertificateWarnings warnings;
  const FacilityName alba("alba");
  const Clock::UtcTime now{std::chrono::hours(1000)};
  EXPECT_TRUE(warnings.due(alba, now + minutes(10), now));
  EXPECT_FALSE(warnings.due(alba, now + minutes(10), now + minutes(1)));
  EXPECT_FALSE(warnings.due(alba, now + minutes(720), now + minutes(2)));
  EXPECT_TRUE(warnings.due(alba, now + minutes(720), now + minutes(650)));
  EXPECT_FALSE(warnings.due(alba, std::nullopt, now));
}

}  // namespace
}  // namespace xffl::upkeep
