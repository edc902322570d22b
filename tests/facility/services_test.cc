#include "xffl/facility/services.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {
namespace {

// A round's job and the short job of `xffl doctor --job` differ in their settings.
TEST(Services, ASchedulerIsThatOfTheSettings) {
  const test::TempDir dir;
  SystemClock clock;
  const Services services = make_services(clock, dir.path());
  config::Facility facility;
  facility.name = FacilityName("alba");
  facility.scheduler = submit::QueueSettings("slurm");
  const auto session = services.connect(facility);
  const auto of_round = services.scheduler(facility, session);
  EXPECT_EQ(services.scheduler(facility, session), of_round);
  facility.scheduler.as<submit::SlurmSettings>().time = std::chrono::minutes(15);
  EXPECT_NE(services.scheduler(facility, session), of_round);
}

}  // namespace
}  // namespace xffl::facility
