// `xffl leave` and `xffl join`: the members of a run change while it goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "e2e/project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

using test::Project;
using testing::ElementsAre;
using testing::HasSubstr;

class Membership : public testing::Test {
 protected:
  ProcessResult command(std::vector<std::string> args) const {
    args.insert(args.begin() + 1, {"-p", project_.path().string()});
    return project_.xffl(args);
  }
  std::vector<std::string> participants(int round) const {
    return project_.history().rounds.at(round).participant_names();
  }
  std::set<std::string> members(int round) const {
    std::set<std::string> names;
    for (const FacilityName& name : project_.history().rounds.at(round).members)
      names.insert(name.str());
    return names;
  }
  // Adds the section of a facility like brno to xffl.yaml.
  void add_facility(const std::string& name) const {
    std::string yaml = read_file(project_.path() / "xffl.yaml", 1 << 20);
    std::string section = yaml.substr(yaml.find("  brno:\n"));
    for (size_t at = 0; (at = section.find("brno", at)) != std::string::npos; at += name.size())
      section.replace(at, 4, name);
    write_file_atomic(project_.path() / "xffl.yaml", yaml + section);
  }
  Project project_;
};

TEST_F(Membership, ALeavingFacilityFinishesItsRoundAndMayJoinAgain) {
  project_.set_rounds(4);
  auto run = project_.start_held_run();
  ASSERT_EQ(command({"leave", "brno", "--reason", "its allocation is spent"}).exit_code, 0);
  EXPECT_THAT(command({"status"}).out,
              HasSubstr("brno LEAVES after this round (its allocation is spent)"));
  project_.hold("alba", 2);
  project_.release("brno");
  project_.release("alba");
  ASSERT_TRUE(project_.await_events("submitted", 3));
  EXPECT_THAT(participants(1), ElementsAre("alba", "brno"));
  EXPECT_THAT(members(2), ElementsAre("alba"));
  EXPECT_THAT(command({"status"}).out, HasSubstr("brno has LEFT (its allocation is spent)"));
  EXPECT_THAT(command({"plan", "--offline"}).out, HasSubstr("brno: has left the run"));
  const Json json = parse_json(command({"status", "--json"}).out, "status");
  EXPECT_EQ(json["left"]["brno"]["reason"], "its allocation is spent");
  ASSERT_EQ(command({"join", "brno"}).exit_code, 0);
  EXPECT_THAT(command({"status"}).out, HasSubstr("brno takes part from the next round on"));
  project_.release("alba", 2);
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
  EXPECT_THAT(participants(2), ElementsAre("alba"));
  EXPECT_THAT(participants(3), ElementsAre("alba", "brno"));
  EXPECT_THAT(participants(4), ElementsAre("alba", "brno"));
  EXPECT_EQ(project_.trainings(),
            (std::vector<std::string>{"alba 1 1", "alba 2 1", "alba 3 1", "alba 4 1", "brno 1 1",
                                      "brno 3 1", "brno 4 1"}));
}

// Under on_missing: wait the round would wait for brno.
TEST_F(Membership, LeavingNowEndsTheRunningJob) {
  project_.set_rounds(2);
  auto run = project_.start_held_run();
  ASSERT_EQ(command({"leave", "brno", "--now"}).exit_code, 0);
  project_.release("alba");
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
  for (int round = 1; round <= 2; ++round) EXPECT_THAT(participants(round), ElementsAre("alba"));
  EXPECT_TRUE(test::job_ends(project_.jobs("brno").at(0)));
  EXPECT_EQ(project_.count_events("cancel_confirmed"), 1);
  EXPECT_EQ(project_.trainings(), (std::vector<std::string>{"alba 1 1", "alba 2 1"}));
}

TEST_F(Membership, LeavingNowFailsNoRoundThatNeedsAll) {
  project_.set_rounds(1);
  project_.set_policy("{on_missing: fail, poll_interval: 20ms}");
  auto run = project_.start_held_run();
  ASSERT_EQ(command({"leave", "brno"}).exit_code, 0);
  ASSERT_EQ(command({"leave", "brno", "--now"}).exit_code, 0) << "also after `leave` alone";
  ASSERT_TRUE(project_.await_events("facility_missing", 1));  // brno's, while alba's job trains
  project_.release("alba");
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
  EXPECT_THAT(participants(1), ElementsAre("alba"));
}

TEST_F(Membership, TheLastMemberCannotLeave) {
  auto run = project_.start_held_run();
  ASSERT_EQ(command({"leave", "alba", "brno"}).exit_code, exit_code(ErrorKind::kUsage))
      << "both in one request";
  ASSERT_EQ(command({"leave", "brno"}).exit_code, 0);
  const ProcessResult last = command({"leave", "alba"});
  EXPECT_EQ(last.exit_code, exit_code(ErrorKind::kUsage));
  EXPECT_THAT(last.err, HasSubstr("alba cannot leave: it is the run's last member"));
  EXPECT_EQ(command({"leave", "nemo"}).exit_code, exit_code(ErrorKind::kNotFound));
  EXPECT_EQ(project_.count_events("facility_left"), 1);
  project_.release();
  EXPECT_EQ(run.finish(), 0);
  EXPECT_THAT(participants(3), ElementsAre("alba"));
}

// cesis stays in the run, but it takes part from the second round on.
TEST_F(Membership, TheLastMemberOfARoundCannotLeaveAtOnce) {
  auto run = project_.start_held_run();
  add_facility("cesis");
  ASSERT_EQ(command({"join", "cesis"}).exit_code, 0);
  ASSERT_EQ(command({"leave", "brno", "--now"}).exit_code, 0);
  const ProcessResult last = command({"leave", "alba", "--now"});
  EXPECT_EQ(last.exit_code, exit_code(ErrorKind::kUsage));
  EXPECT_THAT(last.err, HasSubstr("it is the run's last member in this round or the next"));
  project_.release();
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
  EXPECT_THAT(participants(1), ElementsAre("alba"));
}

TEST_F(Membership, ChangesWithoutACoordinatorAreKept) {
  {
    auto run = project_.start_held_run();
    run.kill();
  }
  ASSERT_EQ(command({"leave", "brno", "--now"}).exit_code, 0);
  EXPECT_TRUE(test::job_ends(project_.jobs("brno").at(0)));
  project_.release();
  ASSERT_EQ(project_.run().exit_code, 0);
  for (int round = 1; round <= 3; ++round) EXPECT_THAT(participants(round), ElementsAre("alba"));
  EXPECT_EQ(project_.trainings(), (std::vector<std::string>{"alba 1 1", "alba 2 1", "alba 3 1"}));
}

// brno reports while no coordinator runs.
TEST_F(Membership, AReportedUpdateOfAFacilityThatLeavesAtOnceIsFetched) {
  project_.set_rounds(1);
  {
    auto run = project_.start_held_run();
    run.kill();
  }
  project_.release("brno");
  EXPECT_TRUE(test::job_ends(project_.jobs("brno").at(0)));
  ASSERT_EQ(command({"leave", "brno", "--now"}).exit_code, 0);
  project_.release();
  ASSERT_EQ(project_.run().exit_code, 0);
  EXPECT_THAT(participants(1), ElementsAre("alba", "brno"));
}

// A killed coordinator continues the round with the members of its plan.
TEST_F(Membership, ARestartKeepsTheMembersOfTheRound) {
  auto run = project_.start_held_run();
  ASSERT_EQ(command({"leave", "brno"}).exit_code, 0);
  run.kill();
  project_.release();
  ASSERT_EQ(project_.run().exit_code, 0);
  EXPECT_THAT(participants(1), ElementsAre("alba", "brno"));
  EXPECT_THAT(participants(2), ElementsAre("alba"));
}

TEST_F(Membership, ANewFacilityJoinsARunningCoordinator) {
  project_.set_rounds(3);
  auto run = project_.start_held_run();
  EXPECT_EQ(command({"join", "cesis"}).exit_code, exit_code(ErrorKind::kNotFound));
  add_facility("cesis");
  const ProcessResult joined = command({"join", "cesis"});
  ASSERT_EQ(joined.exit_code, 0) << joined.err;
  project_.release();
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
  EXPECT_THAT(participants(1), ElementsAre("alba", "brno"));
  EXPECT_THAT(participants(2), ElementsAre("alba", "brno", "cesis"));
  EXPECT_THAT(participants(3), ElementsAre("alba", "brno", "cesis"));
  EXPECT_EQ(project_.count_events("facility_joined"), 1);
}

// The run's configuration has no cesis yet.
TEST_F(Membership, ANewFacilityCanBePausedAndLeaveAheadOfItsFirstRound) {
  project_.set_rounds(1);
  auto run = project_.start_held_run();
  add_facility("cesis");
  ASSERT_EQ(command({"join", "cesis"}).exit_code, 0);
  for (const char* action : {"pause", "resume"}) {
    const ProcessResult result = command({action, "cesis"});
    EXPECT_EQ(result.exit_code, 0) << action << ": " << result.err;
  }
  EXPECT_EQ(command({"pause"}).exit_code, 0);
  EXPECT_EQ(project_.history().paused.size(), 3u);
  const auto file = project_.path() / "xffl.yaml", away = project_.path() / "away.yaml";
  std::filesystem::rename(file, away);  // the other members do not need it
  EXPECT_EQ(command({"pause"}).exit_code, 0);
  EXPECT_NE(command({"pause", "cesis"}).exit_code, 0);
  std::filesystem::rename(away, file);
  const ProcessResult left = command({"leave", "cesis"});
  EXPECT_EQ(left.exit_code, 0) << left.err;
  EXPECT_TRUE(project_.history().left.contains(FacilityName("cesis")));
  EXPECT_EQ(command({"pause", "nemo"}).exit_code, exit_code(ErrorKind::kNotFound));
  EXPECT_EQ(command({"resume"}).exit_code, 0);
  project_.release();
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
}

// A folder has the name of the file that the coordinator would write.
TEST_F(Membership, AnErrorOfThisMachineAtAJoinHoldsUpNoOther) {
  project_.set_rounds(2);
  auto run = project_.start_held_run();
  add_facility("cesis");
  ASSERT_EQ(command({"join", "cesis"}).exit_code, 0);
  const history::RunFolder folder(project_.run_folder().parent_path(), RunName("0001"));
  for (int epoch = 1; epoch < 9; ++epoch)
    make_dirs(folder.config().string() + ".e" + std::to_string(epoch) + ".tmp");
  project_.release();
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
  EXPECT_THAT(participants(2), ElementsAre("alba", "brno"));
}

TEST_F(Membership, ANewFacilityWithAWrongTemplateHoldsUpNoOther) {
  auto run = project_.start_held_run();
  add_facility("cesis");
  write_file_atomic(project_.path() / "wrong.sh", "{{acount}}\n");
  std::string yaml = read_file(project_.path() / "xffl.yaml", 1 << 20);
  const std::string section = "  cesis:\n";
  yaml.insert(yaml.find(section) + section.size(), "    template: wrong.sh\n");
  write_file_atomic(project_.path() / "xffl.yaml", yaml);
  const ProcessResult joined = command({"join", "cesis"});
  ASSERT_EQ(joined.exit_code, 0) << joined.err;
  project_.release();
  EXPECT_EQ(run.finish(), 0) << read_file(project_.log(), 1 << 20);
  EXPECT_THAT(participants(2), ElementsAre("alba", "brno"));
  EXPECT_THAT(read_file(project_.log(), 1 << 20), HasSubstr("wrong.sh:1: "));
}

TEST_F(Membership, ANewFacilityJoinsAtTheNextStart) {
  auto run = project_.start_held_run();
  run.kill();
  add_facility("cesis");
  project_.release();
  const ProcessResult result = project_.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(participants(1), ElementsAre("alba", "brno")) << "the round in progress";
  EXPECT_THAT(participants(2), ElementsAre("alba", "brno", "cesis"));
  EXPECT_EQ(project_.count_events("facility_joined"), 1);
}

// The keys of the present facilities stay fixed.
TEST_F(Membership, JoinRejectsAnotherTraining) {
  auto run = project_.start_held_run();
  add_facility("cesis");
  std::string yaml = read_file(project_.path() / "xffl.yaml", 1 << 20);
  yaml.replace(yaml.find("steps_per_round: 4"), 18, "steps_per_round: 5");
  write_file_atomic(project_.path() / "xffl.yaml", yaml);
  EXPECT_EQ(command({"join", "cesis"}).exit_code, exit_code(ErrorKind::kConfig));
  EXPECT_EQ(project_.count_events("facility_joined"), 0);
  project_.release();
  EXPECT_EQ(run.finish(), 0);
}

}  // namespace
}  // namespace xffl
