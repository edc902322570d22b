#include "site.h"

#include <gtest/gtest.h>

#include "fake_services.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"

namespace xffl::facility {
namespace {

// A link without progress is an outage, although each try finds the bytes of the try before.
TEST(Site, BytesOfEarlierTriesAreGainedOnce) {
  const test::TempDir dir;
  const history::RunFolder folder{dir.path(), RunName("0001")};
  make_dirs(folder.path());
  test::FakeServices fake;
  config::Experiment experiment;
  experiment.facilities.emplace_back();
  experiment.facilities.front().name = FacilityName("alba");
  history::RunHistory history(folder.journal());
  history::StatusFile live(folder.live(), fake.clock);
  const Observer none;
  Context context{experiment, folder, fake.services, none, history, live, {}};
  const plan::RoundPlan round{};
  plan::FacilityPlan alba;
  alba.facility = FacilityName("alba");
  Site site(context, round, alba);
  const auto gained = [&](uint64_t in_place) {
    site.gained_bytes = 0;
    site.progress("pushing", RemotePath("/w/model"))({.done_bytes = in_place, .total_bytes = 100});
    return site.gained_bytes;
  };
  EXPECT_EQ(gained(0), 0u);
  EXPECT_EQ(gained(60), 60u) << "the first try has moved them";
  EXPECT_EQ(gained(60), 0u) << "the second try has moved nothing";
  EXPECT_EQ(gained(100), 40u);
}

}  // namespace
}  // namespace xffl::facility
