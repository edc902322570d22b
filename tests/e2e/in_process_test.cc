// Federations in this process whose facilities answer wrongly and whose clocks jump. The trainings
// are those of xffl-fake-trainer.
#include "e2e/in_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl::test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

struct WrongAnswer {
  const char* operation;
  ErrorKind kind;
};
class WrongAnswers : public InProcessFederation, public testing::WithParamInterface<WrongAnswer> {};

// A malformed answer, a file system that is not mounted for a while and a missing command are
// errors of a facility: the federation waits.
TEST_P(WrongAnswers, OfOneFacilityAreRetried) {
  clock_.longest_sleep = milliseconds(50);
  const auto fail = times(2, GetParam().kind, "what answers is no file server");
  watch("brno", [fail](const std::string& operation, const RemotePath&) {
    if (operation == GetParam().operation) fail();
  });
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_EQ(project_.trainings().size(), 6u);
}
INSTANTIATE_TEST_SUITE_P(All, WrongAnswers,
                         testing::Values(WrongAnswer{"make_dirs", ErrorKind::kNotFound},
                                         WrongAnswer{"write", ErrorKind::kCorrupt},
                                         WrongAnswer{"rename", ErrorKind::kUnsupported},
                                         WrongAnswer{"stat", ErrorKind::kCorrupt}),
                         [](const auto& each) { return std::string(each.param.operation); });

TEST_F(InProcessFederation, TextThatIsNotUtf8EndsNoRun) {
  clock_.longest_sleep = milliseconds(50);
  const auto fail = times(3, ErrorKind::kAuth, "welcome \xff\xed\xa0\x80");
  watch("brno", [fail](const std::string&, const RemotePath&) { fail(); });
  EXPECT_EQ(run().rounds_published, 3);
}

// Hides an update at the first look at it, and shows it again at look `shown`.
WatchedSession::Before hide_update(std::atomic<int>& looks, int shown) {
  return [&looks, shown](const std::string& operation, const RemotePath& path) {
    if (operation != "stat" || !path.str().ends_with("out/update/manifest.json")) return;
    const auto update = std::filesystem::path(path.str()).parent_path();
    const auto hidden = update.parent_path() / "hidden";
    const int look = ++looks;
    if (look == 1) std::filesystem::rename(update, hidden);
    if (look == shown) std::filesystem::rename(hidden, update);
  };
}

// On a shared file system the report may become visible before the update. Backoffs are at most 15
// minutes long, so the longest wait is that between two reads.
TEST_F(InProcessFederation, AnUpdateMayBecomeVisibleAfterItsReport) {
  clock_.longest_sleep = milliseconds(50);
  brno_waits_ = [] { return false; };
  brno_settles_ = minutes(30);
  std::atomic<int> looks{0};
  watch("brno", hide_update(looks, 3));
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_GE(looks, 3);
  EXPECT_GE(clock_.longest_asked, std::chrono::nanoseconds(minutes(30)).count());
  EXPECT_EQ(project_.trainings().size(), 6u) << "trained again";
  EXPECT_EQ(project_.count_events("attempt_failed"), 0);
}

TEST_F(InProcessFederation, AnUpdateThatStaysAwayIsRejectedAtTheThirdRead) {
  clock_.longest_sleep = milliseconds(50);
  project_.set_policy("{on_missing: skip, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.write_config();
  std::atomic<int> looks{0};
  watch("brno", hide_update(looks, 0));
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(project_.count_events("update_accepted"), 1) << "alba's alone";
  EXPECT_EQ(project_.count_events("facility_missing"), 1);
}

// The round continues without a facility whose job could not be cancelled; the end of the run
// cancels the job.
TEST_F(InProcessFederation, NoJobIsLeftBehind) {
  project_.set_policy("{on_missing: skip, quorum: 1, deadline: 8s, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  const auto fail = times(1, ErrorKind::kRemote, "the link is down");
  watch("brno", [fail](const std::string&, const RemotePath& path) {
    if (path.str().ends_with("claim/fenced")) fail();
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(project_.trainings(), std::vector<std::string>{"alba 1 1"});
  EXPECT_EQ(project_.count_events("cancel_intended"), 1);
  EXPECT_EQ(project_.count_events("cancel_confirmed"), 1);
}

TEST_F(InProcessFederation, ACompletedRunRejectsAnotherTraining) {
  project_.set_rounds(1);
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 1);
  project_.set_rounds(2);
  project_.write_config();
  const Error error = error_of([&] { run(); });
  EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  EXPECT_THAT(error.what(), HasSubstr("--new"));
  EXPECT_EQ(project_.trainings().size(), 2u);
}

// The job reports and ends between the search for its report and the scheduler's answer.
TEST_F(InProcessFederation, AJobThatEndsDuringAPollIsFetchedAtOnce) {
  project_.set_rounds(1);
  project_.write_config();
  project_.set_hold();
  project_.release("alba");
  brno_settles_ = minutes(30);
  clock_.longest_sleep = milliseconds(50);
  brno_waits_ = [&] {
    project_.release("brno");
    const auto folder = facility_folder("brno");
    const auto reported = [&] {
      const auto rounds = names_in(folder, "r0001");
      return !rounds.empty() &&
             std::filesystem::exists(folder / rounds.at(0) / "a1/out/report.json");
    };
    EXPECT_TRUE(await(reported)) << folder;
    EXPECT_TRUE(job_ends(project_.jobs("brno").at(0)));
    return false;
  };
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_LT(clock_.longest_asked, std::chrono::nanoseconds(minutes(20)).count());
}

// The wall clock steps back between a round's start and its first submission.
TEST_F(InProcessFederation, AWallClockThatJumpsBackEndsNoDeadline) {
  project_.set_policy("{on_missing: skip, quorum: 2, deadline: 2h, poll_interval: 20ms}");
  project_.set_rounds(1);
  project_.write_config();
  clock_.ahead_hours = 10;
  for (const char* name : {"alba", "brno"})
    watch(name, [&](const std::string&, const RemotePath&) { clock_.ahead_hours = 0; });
  EXPECT_EQ(run().rounds_published, 1);
}

}  // namespace
}  // namespace xffl::test
