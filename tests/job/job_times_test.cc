#include "xffl/job/job_times.h"

#include <gmock/gmock.h>

#include "samples.h"

namespace xffl::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const char* const kTimes =
    "start 1000 job=4711 restart=0 nodes=4 beat=00ff\n"
    "train 1030\n"
    "start 2000 job=4711 restart=1 handover=2 nodes=4 beat=00aa\n"
    "train 2010\n"
    "trained 3000 0\n"
    "offered 3001\n"
    "handed_over 3500\n"
    "end 3501\n";

JobStart first_start() {
  JobStart start;
  start.job = "4711";
  start.nodes = 4;
  start.beat = "00ff";
  start.start = 1000;
  start.train = 1030;
  return start;
}

JobStart second_start() {
  JobStart start = first_start();
  start.restart = 1;
  start.handover = 2;
  start.beat = "00aa";
  start.start = 2000;
  start.train = 2010;
  start.trained = 3000;
  start.status = 0;
  start.offered = 3001;
  start.handed_over = 3500;
  start.end = 3501;
  return start;
}

TEST(JobTimes, EachStartHasItsMoments) {
  EXPECT_THAT(parse_job_times(kTimes), ElementsAre(first_start(), second_start()));
}

TEST(JobTimes, HalfALineAndUnknownWordsAreSkipped) {
  EXPECT_THAT(parse_job_times("start 1000 job=4711 nodes=4 beat=00ff\nlunch 1020\ntrain 1030\n"
                              "trained 104"),
              ElementsAre(first_start()));
  EXPECT_THAT(parse_job_times(""), IsEmpty());
  EXPECT_THAT(parse_job_times("train 1030\nend 1040\n"), IsEmpty()) << "there is no start";
}

TEST(JobTimes, HostileTextGivesBoundedValues) {
  const auto starts = parse_job_times(
      "start 5 job=../../x restart=-1 nodes=999999999999 beat=../owner\n"
      "train 99999999999999999999\ntrain -4\ntrained 1e3 0\ntrained 7 4096\nend 0x10\n");
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].job, "");
  EXPECT_EQ(starts[0].beat, "") << "the name of a file at the facility";
  EXPECT_EQ(starts[0].restart, 0);
  EXPECT_EQ(starts[0].nodes, 1);
  EXPECT_FALSE(starts[0].train);
  EXPECT_EQ(starts[0].trained, 7);
  EXPECT_FALSE(starts[0].status);
  EXPECT_FALSE(starts[0].end);

  EXPECT_EQ(parse_job_times("start 5 job=-1\n").at(0).job, "") << "no job id begins so";

  std::string many;
  for (int i = 0; i < 5000; ++i) many += "start 1\n";
  const JobUsage full{.starts = parse_job_times(many)};
  EXPECT_EQ(full.starts.size(), 1000u);
  EXPECT_EQ(parse_job_usage(format_job_usage(full), "journal"), full);
}

TEST(JobTimes, ALineAfterADroppedStartChangesNoOtherStart) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "start 1\n";
  text += "train 2\nstart 3\ntrain 4\ntrained 5 1\nstart 6\nend 7\n";
  const auto starts = parse_job_times(text);
  ASSERT_EQ(starts.size(), 1000u);
  EXPECT_EQ(starts.back().train, 2);
  EXPECT_FALSE(starts.back().trained);
  EXPECT_FALSE(starts.back().status);
  EXPECT_FALSE(starts.back().end);
}

// The wait of a kept allocation is no work, even if no attempt takes the allocation.
TEST(EndOfWork, IsTheOfferOfAJobThatHasEndedLater) {
  JobStart start = second_start();
  start.last_beat = 3490;
  const auto end = [&](std::optional<double> report_seconds = std::nullopt) {
    const std::optional<WorkEnd> found = end_of_work(start, report_seconds);
    return found && !found->is_bounded ? found->seconds : -1;
  };
  EXPECT_EQ(end(7), 3001);
  start.offered.reset();
  EXPECT_EQ(end(7), 3501) << "without an offer: the script's end";
  start.end.reset();
  EXPECT_EQ(end(7), 3000) << "the last rank's end";
  start.trained.reset();
  EXPECT_EQ(end(7), 2017) << "the launch and the report's seconds";
  start.train.reset();
  EXPECT_EQ(end(7), 2007) << "without a launch: the start of the script";
  EXPECT_EQ(end(), -1) << "the last heartbeat is a bound";
}

TEST(JobTimes, TheJournalKeepsAllOfThem) {
  JobUsage usage{.clock_offset = -3.5, .clock_error = 0.75, .starts = parse_job_times(kTimes)};
  usage.starts[0].last_beat = 1095;
  EXPECT_EQ(parse_job_usage(format_job_usage(usage), "journal"), usage);
  EXPECT_EQ(parse_job_usage(format_job_usage({}), "journal"), JobUsage{});
}

TEST(JobTimes, TheJournalsTextIsChecked) {
  const auto problem = [](const std::string& json) {
    return message_of(ErrorKind::kCorrupt, [&] { parse_job_usage(json, "journal"); });
  };
  EXPECT_THAT(problem(R"({"starts": 3})"), HasSubstr("starts"));
  EXPECT_THAT(problem(R"({"starts": [{"job": "1", "nodes": -1, "start": 1}]})"),
              HasSubstr("nodes"));
  EXPECT_THAT(problem(R"({"clock_error": -1, "starts": []})"), HasSubstr("clock_error"));
}

}  // namespace
}  // namespace xffl::job
