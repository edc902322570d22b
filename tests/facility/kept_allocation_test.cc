#include "xffl/facility/kept_allocation.h"

#include <gtest/gtest.h>

#include <map>

#include "support/fake_session.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {
namespace {

const JobId kJ("7");

class KeptAllocationPlan : public testing::Test {
 protected:
  KeptAllocationPlan() {
    experiment_.rounds = 5;
    config::Facility alba;
    alba.name = plan_.facility = FacilityName("alba");
    alba.scheduler = submit::QueueSettings("slurm");
    alba.scheduler.as<submit::SlurmSettings>().keep_allocation = std::chrono::seconds(60);
    experiment_.facilities = {alba};
    plan_.folder = RemotePath("/w/alba");
  }
  submit::SlurmSettings& slurm() {
    return experiment_.facilities.front().scheduler.as<submit::SlurmSettings>();
  }

  /// `job` trained the accepted attempt; those before it failed.
  void accept(int round, int attempt, const std::string& job) {
    history::FacilityState& state = states_[round];
    state = {};
    for (int number = 1; number <= attempt; ++number)
      state.attempts.push_back(
          {.number = number, .job_id = number == attempt ? job : "1" + std::to_string(number)});
    state.accepted = history::Accepted{plan_.facility, attempt, "", {}};
  }
  StateOf state() {
    return [this](int round) { return states_[round]; };
  }
  AttemptNumber first(int round, int attempt, const JobId& job = kJ) {
    return first_attempt({round, attempt}, job, state());
  }
  std::string kept_after(int old, int newest) {
    test::FakeSession session;
    for (int round = 1; round <= 5; ++round)
      for (const char* file : {"/a1/out/update", "/a1/stay.newest", "/a2/out/update", "/state/x"})
        session.put(plan::attempt_folder(plan_, round, 1).parent().str() + file, "x");
    remove_round(session, plan_, old, newest, state());
    std::string left;
    for (int round = 1; round <= old; ++round)
      for (const char* file : {"/a1/out/update", "/a1/stay.newest", "/a2/out/update", "/state/x"})
        if (session.stat(RemotePath(plan::attempt_folder(plan_, round, 1).parent().str() + file)))
          left += std::to_string(round) + file + " ";
    return left;
  }

  config::Experiment experiment_;
  plan::FacilityPlan plan_;
  std::map<int, history::FacilityState> states_;
};

TEST_F(KeptAllocationPlan, TheLastJobEnds) {
  EXPECT_EQ(next_attempt_folder(experiment_, plan_, 4), RemotePath("/w/alba/r0005/a1"));
  EXPECT_FALSE(next_attempt_folder(experiment_, plan_, 5));
  experiment_.policy.evaluate_last = true;
  EXPECT_FALSE(next_attempt_folder(experiment_, plan_, 5)) << "it has nothing to measure on";
  experiment_.facilities.front().validation = {{"it", "/it.tokens"}};
  EXPECT_EQ(next_attempt_folder(experiment_, plan_, 5), RemotePath("/w/alba/r0006/a1"));
  EXPECT_FALSE(next_attempt_folder(experiment_, plan_, 6));
  slurm().keep_allocation = std::chrono::seconds(0);
  EXPECT_FALSE(next_attempt_folder(experiment_, plan_, 1));
}

TEST_F(KeptAllocationPlan, OnlyTheFirstAttemptAfterAnAcceptedOneHasAKeptAllocation) {
  accept(2, 2, "7");
  const auto offered = [&](int round, int attempt) {
    return kept_allocation_for(experiment_, plan_, round, attempt, state());
  };
  EXPECT_EQ(offered(3, 1), (submit::KeptAllocation{kJ, RemotePath("/w/alba/r0002/a2")}));
  EXPECT_FALSE(offered(3, 2));
  EXPECT_FALSE(offered(4, 1)) << "round 3 was missed";
  EXPECT_FALSE(offered(1, 1));
  accept(4, 1, "7");
  EXPECT_TRUE(offered(5, 1)) << "the last round takes the allocation that round 4 has kept";
  slurm().keep_allocation = std::chrono::seconds(0);
  EXPECT_FALSE(offered(3, 1));
}

TEST_F(KeptAllocationPlan, AJobHasTheNameOfTheAttemptThatItWasSubmittedFor) {
  EXPECT_EQ(first(1, 1), (AttemptNumber{1, 1}));
  accept(1, 1, "7");
  accept(2, 1, "8");
  accept(3, 2, "7");
  accept(4, 1, "7");
  EXPECT_EQ(first(2, 1), (AttemptNumber{1, 1}));
  EXPECT_EQ(first(5, 1), (AttemptNumber{3, 2})) << "a second attempt is never handed over";
  EXPECT_EQ(first(5, 2), (AttemptNumber{5, 2}));
  EXPECT_EQ(first(5, 1, JobId("9")), (AttemptNumber{5, 1}));
}

TEST_F(KeptAllocationPlan, FilesOfARequeuedJobStayUntilAnotherJobIsSubmitted) {
  for (int round = 1; round <= 3; ++round) accept(round, 1, "7");
  EXPECT_EQ(kept_after(1, 3), "1/a1/stay.newest ");
  accept(4, 1, "7");
  EXPECT_EQ(kept_after(2, 4), "1/a1/out/update 1/a1/stay.newest 1/a2/out/update 1/state/x ")
      << "round 1 is not looked at again";
  accept(4, 1, "8");
  EXPECT_EQ(kept_after(2, 4), "");
  for (int round = 1; round <= 3; ++round) accept(round, 1, std::to_string(round));
  EXPECT_EQ(kept_after(1, 3), "");
}

TEST_F(KeptAllocationPlan, TheFolderOfASecondAttemptStaysForItsJob) {
  accept(1, 2, "7");
  for (const int round : {2, 3}) accept(round, 1, "7");
  const std::string old = "/w/alba/r0001/";
  test::FakeSession session;
  for (const char* file : {"a1/job.json", "a2/stay.newest", "a2/out/update"})
    session.put(old + file, "x");
  remove_round(session, plan_, 1, 3, state());
  EXPECT_TRUE(session.stat(RemotePath(old + "a2/stay.newest")));
  EXPECT_FALSE(session.stat(RemotePath(old + "a2/out/update")));
  EXPECT_FALSE(session.stat(RemotePath(old + "a1/job.json")));
}

// A server's listing with names that are no children of the folder, or no paths for xffl.
class OddNames final : public test::FakeSession {
 public:
  std::vector<std::string> list(const RemotePath& folder) override {
    std::vector<std::string> names{
        "", ".", "..", "../r0002", "a1/../..", "a2/job.json", "/w", "a\nb", std::string(5000, 'a')};
    for (const std::string& name : FakeSession::list(folder)) names.push_back(name);
    return names;
  }
};

TEST_F(KeptAllocationPlan, OddNamesInARoundsFolderHoldUpNoRemoval) {
  accept(1, 2, "7");
  for (const int round : {2, 3}) accept(round, 1, "7");
  OddNames session;
  for (const char* file : {"r0001/a2/job.json", "r0001/a2/out/update", "r0001/state/x", "r0002/x"})
    session.put(std::string("/w/alba/") + file, "x");
  remove_round(session, plan_, 1, 3, state());
  const auto is_there = [&](const std::string& file) {
    return session.stat(RemotePath("/w/alba/" + file)).has_value();
  };
  EXPECT_TRUE(is_there("r0001/a2/job.json"));
  EXPECT_TRUE(is_there("r0002/x"));
  EXPECT_FALSE(is_there("r0001/a2/out/update"));
  EXPECT_FALSE(is_there("r0001/state/x"));
}

}  // namespace
}  // namespace xffl::facility
