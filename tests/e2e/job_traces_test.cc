// A job's metrics and times: they reach the run folder and the journal, also those of a failed
// attempt, and their absence or a failure ends nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <time.h>

#include "e2e/project.h"
#include "xffl/base/file.h"
#include "xffl/history/events.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::Project;

struct Attempt {
  std::string kind, facility;
  int attempt = 0;
  std::optional<job::JobUsage> usage;
};

// The ends of all attempts on record.
std::vector<Attempt> ends_of(const Project& project) {
  std::vector<Attempt> ends;
  for (const history::StoredEvent& stored : project.events()) {
    const history::RecordedEvent recorded = history::decode(stored);
    if (const auto* failed = std::get_if<history::AttemptFailed>(&recorded.event))
      ends.push_back({stored.kind, stored.facility, stored.attempt, failed->usage});
    if (const auto* accepted = std::get_if<history::UpdateAccepted>(&recorded.event))
      ends.push_back({stored.kind, stored.facility, stored.attempt, accepted->usage});
  }
  return ends;
}

fs::path metrics(const Project& project, const std::string& facility, int attempt) {
  return project.run_folder() / "r0001" / facility /
         ("metrics-a" + std::to_string(attempt) + ".jsonl");
}

std::string line(int attempt) {
  return "{\"step\": 1, \"loss\": " + std::to_string(attempt) + "}\n";
}

TEST(JobTraces, OfEachAttemptAreKeptAlsoOfAFailedOne) {
  Project project;
  project.set_rounds(1);
  project.set_fault("alba", "crash");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(metrics(project, "alba", 1), 1000), line(1));
  EXPECT_EQ(read_file(metrics(project, "alba", 2), 1000), line(2));
  EXPECT_EQ(read_file(metrics(project, "brno", 1), 1000), line(1));

  const std::vector<Attempt> ends = ends_of(project);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(std::ranges::count(ends, "attempt_failed", &Attempt::kind), 1);
  for (const Attempt& end : ends) {
    ASSERT_TRUE(end.usage) << end.facility << " attempt " << end.attempt;
    EXPECT_EQ(end.usage->clock_offset, 0) << "the facility is this machine";
    ASSERT_EQ(end.usage->starts.size(), 1u);
    const job::JobStart& start = end.usage->starts.front();
    EXPECT_THAT(project.jobs(end.facility), testing::Contains(start.job));
    EXPECT_LE(start.start, start.train.value());
    EXPECT_LE(std::abs(start.start - ::time(nullptr)), 300);
  }
}

TEST(JobTraces, OfARoundThatAKilledCoordinatorAcceptedAreFetchedByTheNextOne) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  int64_t accepted = 0;
  for (const history::StoredEvent& event : project.events())
    if (event.kind == "update_accepted") accepted = event.seq;
  project.forget_runs();
  ASSERT_EQ(
      project.run({{"XFFL_FAILPOINT", "journal:after:" + std::to_string(accepted)}}).exit_code,
      128 + SIGKILL);
  ASSERT_EQ(project.run().exit_code, 0);
  for (const char* facility : {"alba", "brno"})
    EXPECT_EQ(read_file(metrics(project, facility, 1), 1000), line(1)) << facility;
}

TEST(JobTraces, AreCutAtWholeLinesAndTheirSize) {
  Project project;
  project.set_rounds(1);
  project.set_environment("alba", "yes '{}' | head -c 68000000 >out/metrics.jsonl");
  project.set_environment("brno",
                          "printf '{}\\n{half' >out/metrics.jsonl; chmod 400 out/metrics.jsonl");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const uint64_t size = fs::file_size(metrics(project, "alba", 1));
  EXPECT_LE(size, 64u << 20);
  EXPECT_GE(size, (64u << 20) - 3) << "a line has three bytes";
  EXPECT_EQ(size % 3, 0u);
  EXPECT_THAT(read_file(metrics(project, "brno", 1), 1000), testing::StartsWith("{}\n"));
}

TEST(JobTraces, ThatCannotBeReadEndNothing) {
  Project project;
  project.set_rounds(1);
  project.set_environment("alba", "mkdir out/metrics.jsonl; rm claim/times; mkdir claim/times");
  project.set_environment(
      "brno", "ln -s /dev/zero out/metrics.jsonl; head -c 100000 /dev/zero >claim/times");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* facility : {"alba", "brno"})
    EXPECT_FALSE(fs::exists(metrics(project, facility, 1))) << facility;
  for (const Attempt& end : ends_of(project)) {
    EXPECT_EQ(end.kind, "update_accepted");
    EXPECT_FALSE(end.usage) << end.facility;
  }
}

}  // namespace
}  // namespace xffl
