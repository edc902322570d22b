#include "site.h"

#include <gtest/gtest.h>

#include "fake_services.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"

namespace xffl::facility {
namespace {

// One facility of a round, in memory.
struct SiteInMemory {
  SiteInMemory() {
    make_dirs(folder.path());
    experiment.facilities.emplace_back();
    alba.facility = experiment.facilities.front().name = FacilityName("alba");
    alba.round_folder = RemotePath("/w/r0001");
  }

  const test::TempDir dir;
  const history::RunFolder folder{dir.path(), RunName("0001")};
  config::Experiment experiment;
  const plan::RoundPlan round{};
  plan::FacilityPlan alba;
  const Observer none;
  test::FakeServices fake;
};

struct OpenSite : SiteInMemory {
  history::RunHistory history{folder.journal()};
  history::StatusFile live{folder.live(), fake.clock};
  Context context{experiment, folder, fake.services, none, history, live, {}};
  Site site{context, round, alba};
};

// A link without progress is an outage, although each try finds the bytes of the try before.
TEST(Site, BytesOfEarlierTriesAreGainedOnce) {
  OpenSite open;
  Site& site = open.site;
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

// Each start of a requeued job has a heartbeat file of its own, and each attempt a folder.
TEST(Site, KilledStartsEndWithTheirOwnHeartbeats) {
  OpenSite open;
  const std::string claim = "/w/r0001/a2/claim/";
  open.fake.session->put(claim + "times",
                         "start 100 job=7 beat=aa\nstart 200 job=7 restart=1 beat=bb\n"
                         "start 300 job=7 restart=2 beat=cc\nstart 400 job=7 restart=3 beat=dd\n"
                         "end 450\n");
  open.fake.session->put(claim + "beat-aa", "150\n");
  open.fake.session->put(claim + "beat-bb", "250\n");
  open.fake.session->put(claim + "beat-cc", "35");  // torn
  open.fake.session->put(claim + "beat-dd", "445\n");
  JobTraces traces(open.site);
  const auto usage = traces.usage(2);
  ASSERT_TRUE(usage);
  std::vector<std::optional<int64_t>> beats;
  for (const job::JobStart& start : usage->starts) beats.push_back(start.last_beat);
  EXPECT_EQ(beats, (std::vector<std::optional<int64_t>>{150, 250, {}, {}}));
}

}  // namespace
}  // namespace xffl::facility
