// policy.quorum_grace: one facility that is dead, paused, without a credential or late delays no
// round beyond it, and changes of the policy apply from the next start of the coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "e2e/in_process.h"
#include "xffl/base/clock.h"
#include "xffl/history/run_folder.h"

namespace xffl::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class Quorum : public InProcessFederation {
 protected:
  // The seconds from the last update in the mean of a round to the round's publication.
  double delay(int round) const {
    std::optional<Clock::UtcTime> met, published;
    for (const history::StoredEvent& event : project_.events()) {
      if (event.round != round) continue;
      if (event.kind == "update_accepted") met = parse_utc(event.time_utc);
      if (event.kind == "published") published = parse_utc(event.time_utc);
    }
    if (!met || !published) return 1e9;
    return std::chrono::duration<double>(*published - *met).count();
  }
  // The seconds since the last update in the mean.
  double seconds_since_update() const {
    Clock::UtcTime update{};
    for (const history::StoredEvent& event : project_.events())
      if (event.kind == "update_accepted") update = parse_utc(event.time_utc).value();
    return std::chrono::duration<double>(SystemClock().utc() - update).count();
  }
  std::string missing(int round) const {
    return project_.history()
        .rounds.at(round)
        .facilities.at(FacilityName("brno"))
        .missing.value_or("");
  }
  void write(const std::string& policy, int rounds) {
    project_.set_policy("{on_missing: skip, poll_interval: 20ms, " + policy + "}");
    project_.set_rounds(rounds);
    project_.write_config();
  }
  // The time until the end of the round, as brno's activity shows that end.
  std::optional<Clock::UtcTime::duration> shown_time_left() const {
    const std::string words = "the round ends at ";
    const history::Activities live = history::read_activities(project_.run_folder() / "live.json");
    const auto brno = live.find(FacilityName("brno"));
    const std::string doing = brno == live.end() ? "" : brno->second.activity;
    const size_t at = doing.find(words);
    if (at == std::string::npos) return std::nullopt;
    const auto end = parse_utc(doing.substr(at + words.size()));
    return end ? std::optional(*end - SystemClock().utc()) : std::nullopt;
  }
  // Runs until the coordinator has recorded `count` updates, then stops it.
  void run_until_accepted(int count) {
    std::thread coordinator([&] { EXPECT_THROW(run(), Error); });
    EXPECT_TRUE(project_.await_events("update_accepted", count));
    stop_.request_stop();
    coordinator.join();
    stop_ = std::stop_source();
  }
  // Disconnects brno, and calls `then` when brno's next pause is 80 s at least.
  void disconnect_brno(std::function<void()> then) {
    project_.set_hold();
    project_.write_config();
    clock_.longest_sleep = milliseconds(10);
    watch("brno", [this, then = std::move(then)](const std::string&, const RemotePath&) {
      if (++failures_ == kFailures) {
        clock_.longest_sleep = std::chrono::hours(1);
        then();
      }
      throw Error(ErrorKind::kRemote, "no way to brno");
    });
  }
  static constexpr int kFailures = 6;  // with pauses from 5 s on, each twice the last one
  std::atomic<int> failures_{0};
  // To tell the facility, average and publish: the bound of docs/developer/faults.md for a
  // deadline.
  static constexpr double kClosing = 20;
};

struct Obstacle {
  const char* name;
  ErrorKind kind;
};
class QuorumWithout : public Quorum, public testing::WithParamInterface<Obstacle> {};

TEST_P(QuorumWithout, AFacilityForTenRoundsCostsOneGraceTimeEach) {
  write("quorum: 1, quorum_grace: 1s, deadline: 1h", 10);
  watch("brno", [](const std::string&, const RemotePath&) {
    throw Error(GetParam().kind, "no way to brno");
  });
  EXPECT_EQ(run().rounds_published, 10);
  for (int round = 1; round <= 10; ++round) {
    EXPECT_GE(delay(round), 0.9) << round;
    EXPECT_LE(delay(round), 1 + kClosing) << round;
    EXPECT_THAT(missing(round), HasSubstr("after its quorum"));
  }
}
INSTANTIATE_TEST_SUITE_P(All, QuorumWithout,
                         testing::Values(Obstacle{"Link", ErrorKind::kRemote},
                                         Obstacle{"Credential", ErrorKind::kAuth}),
                         [](const auto& each) { return std::string(each.param.name); });

// A facility's pause between two tries grows to 15 minutes.
TEST_F(Quorum, AFacilityInALongPauseDelaysNoRound) {
  write("quorum: 1, quorum_grace: 1s, deadline: 1h", 1);
  disconnect_brno([&] { project_.release("alba"); });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(failures_, kFailures);
  EXPECT_LE(delay(1), 1 + kClosing);
}

// Under on_missing: wait the round would wait for brno.
TEST_F(Quorum, AFacilityThatLeavesInALongPauseDelaysNoRound) {
  project_.set_policy("{on_missing: wait, poll_interval: 20ms}");
  project_.set_rounds(1);
  std::jthread user;
  disconnect_brno([&] {
    user = std::jthread([&] {
      std::this_thread::sleep_for(milliseconds(300));  // the pause begins
      history::leave_request(
          {project_.path() / "runs", RunName("0001")},
          {history::Request::Kind::kLeave, {FacilityName("brno")}, "gone", /*now=*/true});
      project_.release("alba");
    });
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(failures_, kFailures);
  EXPECT_LE(delay(1), kClosing);
}

TEST_F(Quorum, APausedFacilityCostsOneGraceTime) {
  write("quorum: 1, quorum_grace: 1s, deadline: 1h", 2);
  project_.set_hold();
  project_.write_config();
  std::thread coordinator([&] { EXPECT_THROW(run(), Error); });
  EXPECT_TRUE(project_.await_events("submitted", 2));
  stop_.request_stop();
  coordinator.join();
  stop_ = std::stop_source();
  ASSERT_EQ(project_.xffl({"pause", "-p", project_.path().string(), "brno"}).exit_code, 0);
  project_.release("alba");
  EXPECT_EQ(run().rounds_published, 2);
  for (int round = 1; round <= 2; ++round) EXPECT_LE(delay(round), 1 + kClosing) << round;
  EXPECT_EQ(project_.trainings(), (std::vector<std::string>{"alba 1 1", "alba 2 1"}));
}

// brno's job runs at the end of the round: it is fenced and cancelled, and no later update counts.
TEST_F(Quorum, ALateJobIsCancelledAndStaysOutOfTheMean) {
  write("quorum: 1, quorum_grace: 2s, deadline: 1h", 1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(delay(1), 1.9);
  EXPECT_LE(delay(1), 2 + kClosing);
  EXPECT_EQ(project_.count_events("cancel_confirmed"), 1);
  EXPECT_EQ(project_.history().rounds.at(1).participant_names(), std::vector<std::string>{"alba"});
  EXPECT_TRUE(job_ends(project_.jobs("brno").at(0)));
  EXPECT_EQ(project_.trainings(), std::vector<std::string>{"alba 1 1"});
}

// The facility may answer again within the time.
TEST_F(Quorum, AnUpdateWithinTheGraceTimeCounts) {
  write("quorum: 1, quorum_grace: 1h, deadline: 2h", 1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  std::thread later([&] {
    EXPECT_TRUE(project_.await_events("update_accepted", 1));
    std::optional<Clock::UtcTime::duration> left;
    EXPECT_TRUE(await([&] { return (left = shown_time_left()).has_value(); }));
    EXPECT_GT(left.value_or(seconds(0)), seconds(3600 - 600));
    EXPECT_LT(left.value_or(seconds(0)), seconds(3600 + 10));
    project_.release("brno");
  });
  EXPECT_EQ(run().rounds_published, 1);
  later.join();
  EXPECT_EQ(project_.history().rounds.at(1).participants.size(), 2u);
}

// alba has measured the last model, and brno measures it for longer than the grace time.
TEST_F(Quorum, TheGraceTimeEndsNoEvaluation) {
  for (const char* name : {"alba", "brno"}) project_.set_validation(name, "it");
  project_.set_hold();
  write("quorum: 1, quorum_grace: 1s, deadline: 1h", 1);
  project_.release();
  project_.hold("brno", 2);
  const auto evaluation_has = [&](const std::string& kind) {
    for (const history::StoredEvent& event : project_.events())
      if (event.round == 2 && event.kind == kind) return true;
    return false;
  };
  std::jthread later([&] {
    EXPECT_TRUE(await([&] { return evaluation_has("update_accepted"); }));
    EXPECT_FALSE(await([&] { return evaluation_has("facility_missing"); }, seconds(2)));
    project_.release("brno", 2);
  });
  EXPECT_EQ(run().rounds_published, 1);
  later.join();
  const history::RoundState evaluation = project_.history().rounds.at(2);
  EXPECT_TRUE(evaluation.evaluates);
  for (const char* name : {"alba", "brno"})
    EXPECT_TRUE(evaluation.facilities.at(FacilityName(name)).accepted) << name;
}

TEST_F(Quorum, ARestartedCoordinatorEndsTheRoundAtTheSameMoment) {
  write("quorum: 1, quorum_grace: 6s, deadline: 1h", 1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  run_until_accepted(1);
  const double before = seconds_since_update();
  std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.0, 5.5 - before)));
  const double restarted = seconds_since_update();
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(delay(1), 5.9);
  EXPECT_LT(delay(1), restarted + 6) << "the grace time began again";
}

TEST_F(Quorum, ALowerQuorumAppliesFromTheNextStart) {
  write("quorum: 2, quorum_grace: 1s, deadline: 1h", 1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  run_until_accepted(1);
  write("quorum: 1, quorum_grace: 1s, deadline: 1h", 1);
  project_.release("alba");
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(project_.history().rounds.at(1).participants.size(), 1u);
}

TEST_F(Quorum, AnotherDeadlineAppliesFromTheNextStart) {
  write("deadline: 1h", 1);
  project_.set_hold();
  project_.write_config();
  project_.release("alba");
  run_until_accepted(1);
  write("deadline: 1s", 1);
  project_.release("alba");
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(20));
  EXPECT_THAT(missing(1), HasSubstr("the round's deadline of 1 s"));
}

}  // namespace
}  // namespace xffl::test
