// A job beside a run's jobs, whose command was stopped and is repeated.
#include "xffl/facility/side_job.h"

#include <gtest/gtest.h>

#include "fake_services.h"
#include "xffl/plan/facility_layout.h"

namespace xffl::facility {
namespace {

// The answer of its submission was lost: its folder has no id, and the queue does not show it.
TEST(SideJob, IsFencedWhenItCannotBeFound) {
  test::FakeServices fake;
  fake.session->make_dirs(RemotePath("/w/prepare/job1"));
  config::Facility alba;
  alba.name = FacilityName("alba");
  SideJob job(alba, fake.services,
              {.parent = RemotePath("/w/prepare"), .name = "prepare", .report = "report.json"}, {},
              {});
  ASSERT_EQ(job.number(), 1);
  EXPECT_FALSE(job.is_under_way());
  EXPECT_TRUE(fake.session->stat(job.folder() / plan::kFence)) << "it may start late";
}

}  // namespace
}  // namespace xffl::facility
