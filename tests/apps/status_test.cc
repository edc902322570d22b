// `xffl status` as a user calls it. tests/status has the texts.
#include <gmock/gmock.h>

#include "apps/sample_run.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

using StatusCommand = test::SampleRun;

// The text shows the newest rounds only.
TEST_F(StatusCommand, JsonHasAllRoundsOfALongRun) {
  for (int round = 2; round <= 25; ++round) plan_round(round);
  const ProcessResult result = xffl({"status", "--json"});
  const Json rounds = parse_json(result.out, result.err).at("rounds_detail");
  ASSERT_EQ(rounds.size(), 25u);
  EXPECT_EQ(rounds.front().at("facilities").at("alba").at("job_id"), "4101");
}

}  // namespace
}  // namespace xffl
