#include "identities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/synthetic_run.h"
#include "xffl/report/format.h"

namespace xffl::report {
namespace {

using test::SyntheticRun;
using testing::HasSubstr;
using testing::Not;

// Five rounds of two facilities; site0's data change in round 3, and round 4 does not report them.
RunStory story() {
  SyntheticRun run(5);
  for (int round = 1; round <= 5; ++round) run.round(round, 2);
  RunStory story = run.story();
  for (AttemptStory& attempt : story.attempts) {
    job::JobReport& report = attempt.report.value();
    report.program_sha256 = SyntheticRun::hash('9');
    report.data_files = 2;
    report.data_bytes = 3'000'000'000;
    report.data_sha256 = SyntheticRun::hash(
        attempt.facility == SyntheticRun::name(0) && attempt.round >= 3 ? 'b' : 'a');
    if (attempt.facility == SyntheticRun::name(0) && attempt.round == 4) report.data_sha256 = "";
  }
  return story;
}

TEST(Identities, AreTheRoundsOfEachProgramAndData) {
  std::vector<std::string> rows;
  for (const Identity& one : identities(story()))
    rows.push_back(one.facility.str() + " " + std::to_string(one.first_round) + "-" +
                   std::to_string(one.last_round) + " " + one.data_sha256.substr(0, 1));
  EXPECT_THAT(rows, testing::ElementsAre("site0 1-2 a", "site0 3-3 b", "site0 4-4 ", "site0 5-5 b",
                                         "site1 1-5 a"));
}

TEST(Identities, AreOnThePageAndChangesInTheText) {
  const std::string page = format_html(story());
  EXPECT_THAT(page, HasSubstr("2 shards, 3.0 GB, aaaaaaaaaaaaaaaa"));
  EXPECT_THAT(page, HasSubstr("not reported"));
  const std::string text = format_text(story());
  EXPECT_THAT(text, HasSubstr("site0: program or data differ from round 3 on"));
  EXPECT_THAT(text, Not(HasSubstr("site1: program")));
}

TEST(Identities, EqualOnesOfTwoFacilitiesAreTwoRows) {
  SyntheticRun run(1);
  run.round(1, 2);
  EXPECT_EQ(identities(run.story()).size(), 2u);
}

TEST(Identities, OfEvaluationsAndOpenAttemptsDoNotCount) {
  SyntheticRun run(1);
  run.round(1, 1);
  run.plan(2, 1, true);
  run.open(2, 0);
  RunStory story = run.story();
  EXPECT_EQ(identities(story).size(), 1u);
  story.attempts.front().report->steps = 0;
  EXPECT_TRUE(identities(story).empty());
}

}  // namespace
}  // namespace xffl::report
