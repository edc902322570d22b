#include "xffl/plan/round_plan.h"

#include <gtest/gtest.h>

#include "xffl/plan/facility_layout.h"

namespace xffl::plan {
namespace {

config::Experiment experiment() {
  config::Experiment result;
  result.project = ProjectName("p");
  result.rounds = 3;
  for (const char* name : {"alba", "brno", "ceske"}) {
    config::Facility facility;
    facility.name = FacilityName(name);
    facility.workdir = RemotePath("/scratch");
    facility.train_data = {"/data/x.tokens"};
    facility.training.steps = 40;
    result.facilities.push_back(facility);
  }
  return result;
}

const RunIdentity kIdentity{RunName("0001"), "0123456789abcdef0123456789abcdef"};
const std::string kModel(64, 'a');

TEST(NextRound, FollowsThePublishedRoundAndEndsAfterTheLast) {
  EXPECT_EQ(next_round(experiment(), kIdentity, {0, kModel})->round, 1);
  EXPECT_EQ(next_round(experiment(), kIdentity, {2, kModel})->round, 3);
  EXPECT_FALSE(next_round(experiment(), kIdentity, {3, kModel}));
  EXPECT_FALSE(next_round(experiment(), kIdentity, {4, kModel})) << "`rounds` is lower than before";
}

TEST(NextRound, EvaluatesAtFacilitiesWithValidationSetsAfterTheLast) {
  config::Experiment e = experiment();
  e.facilities[1].validation = {{"cs", "/data/cs.tokens"}};
  e.facilities[1].training.keep_optimizer = true;
  e.facilities[1].training.epochs = 2;
  e.policy.on_walltime = config::OnWalltime::kResume;
  EXPECT_FALSE(next_round(e, kIdentity, {2, kModel})->evaluates);
  const auto plan = next_round(e, kIdentity, {3, kModel});
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->evaluates);
  EXPECT_EQ(plan->round, 4);
  EXPECT_EQ(plan->base_sha256, kModel);
  EXPECT_EQ(plan->quorum, 0);
  ASSERT_EQ(plan->facilities.size(), 1u);
  const job::JobSpec spec = job_spec(e, kIdentity, *plan, plan->facilities[0], 1);
  EXPECT_EQ(spec.key.facility, "brno");
  EXPECT_EQ(spec.training.steps, 0);
  EXPECT_EQ(spec.training.epochs, 0);
  EXPECT_EQ(spec.validation, e.facilities[1].validation);
  EXPECT_TRUE(spec.train_paths.empty());
  EXPECT_EQ(spec.on_stop, job::OnStop::kUpdate);
  EXPECT_NO_THROW(job::format_job_spec(spec));
  EXPECT_FALSE(next_round(e, kIdentity, {3, kModel, {}, "", true})) << "the run is completed";
  e.policy.evaluate_last = false;
  EXPECT_FALSE(next_round(e, kIdentity, {3, kModel}));
}

TEST(NextRound, EndsTheTrainingWhenAStopRuleIsMet) {
  config::Experiment e = experiment();
  e.policy.evaluate_last = false;
  Done done{1, kModel};
  EXPECT_EQ(next_round(e, kIdentity, done)->round, 2);
  done.stop_rule_met = true;
  EXPECT_FALSE(next_round(e, kIdentity, done));
  e.policy.evaluate_last = true;
  e.facilities.front().validation.push_back({"it", "/data/it.tokens"});
  EXPECT_TRUE(next_round(e, kIdentity, done)->evaluates);
  EXPECT_EQ(next_round(e, kIdentity, done)->round, 2);
}

TEST(NextRound, IsTheSameByteForByte) {
  const auto once = next_round(experiment(), kIdentity, {1, kModel});
  const auto again = next_round(experiment(), kIdentity, {1, kModel});
  EXPECT_EQ(format_plan(*once), format_plan(*again));
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(
        job::format_job_spec(job_spec(experiment(), kIdentity, *once, once->facilities[i], 1)),
        job::format_job_spec(job_spec(experiment(), kIdentity, *again, again->facilities[i], 1)));
}

TEST(NextRound, QuorumIsAllFacilitiesUnlessMissingOnesAreSkipped) {
  config::Experiment e = experiment();
  e.policy.quorum = 2;
  for (const auto policy : {config::OnMissing::kWait, config::OnMissing::kFail}) {
    e.policy.on_missing = policy;
    EXPECT_EQ(next_round(e, kIdentity, {0, kModel})->quorum, 3);
  }
  e.policy.on_missing = config::OnMissing::kSkip;
  EXPECT_EQ(next_round(e, kIdentity, {0, kModel})->quorum, 2);
  e.policy.quorum = 0;
  EXPECT_EQ(next_round(e, kIdentity, {0, kModel})->quorum, 1);
}

TEST(JobSpec, KeepsRunsRoundsFacilitiesAndAttemptsApart) {
  const auto plan = next_round(experiment(), kIdentity, {1, kModel});
  const job::JobSpec first = job_spec(experiment(), kIdentity, *plan, plan->facilities[0], 1);
  const job::JobSpec second = job_spec(experiment(), kIdentity, *plan, plan->facilities[0], 2);
  const job::JobSpec other = job_spec(experiment(), kIdentity, *plan, plan->facilities[1], 1);
  const RunIdentity other_run{RunName("0001"), "ffffffffffffffffffffffffffffffff"};
  const auto other_plan = next_round(experiment(), other_run, {1, kModel});
  const job::JobSpec copied =
      job_spec(experiment(), other_run, *other_plan, other_plan->facilities[0], 1);
  for (const job::JobSpec* spec : {&second, &other, &copied}) {
    EXPECT_NE(first.key.nonce, spec->key.nonce);
    EXPECT_NE(first.report_path, spec->report_path);
    EXPECT_EQ(first.state_path == spec->state_path, spec == &second)
        << "attempts share their checkpoints: " << spec->state_path;
  }
  EXPECT_EQ(first.report_path, "/scratch/p/0001-01234567/alba/r0002/a1/out/report.json");
  EXPECT_EQ(first.base_model_path, second.base_model_path) << "attempts share the pushed model";
}

// Other users of a facility see the names of jobs and folders.
TEST(JobSpec, NamesHaveTheRunsTagAndNoDigitsOfItsSecret) {
  RunIdentity tagged = kIdentity;
  tagged.tag = "fedcba98";
  const auto plan = next_round(experiment(), tagged, {1, kModel});
  const job::JobSpec spec = job_spec(experiment(), tagged, *plan, plan->facilities[0], 1);
  EXPECT_EQ(spec.report_path, "/scratch/p/0001-fedcba98/alba/r0002/a1/out/report.json");
  EXPECT_EQ(job_name(tagged, spec.key), "xffl-p-0001-fedcba98-r0002-alba-a1");
  EXPECT_EQ(job_name(kIdentity, spec.key), "xffl-p-0001-01234567-r0002-alba-a1")
      << "a run of an earlier release keeps its names";
}

TEST(JobSpec, ContinuesScheduleAndDataWhereTheLastRoundEnded) {
  const auto plan = next_round(experiment(), kIdentity, {2, kModel});
  EXPECT_EQ(job_spec(experiment(), kIdentity, *plan, plan->facilities[0], 1).training.first_step,
            80);
}

TEST(JobSpec, HasTheDataAndTheStepsOfItsFacility) {
  config::Experiment e = experiment();
  e.facilities[1].train_data = {"/data/cs.tokens"};
  e.facilities[1].training.steps = 7;
  const auto plan = next_round(e, kIdentity, {2, kModel});
  const job::JobSpec spec = job_spec(e, kIdentity, *plan, plan->facilities[1], 1);
  EXPECT_EQ(spec.key.facility, "brno");
  EXPECT_EQ(spec.train_paths, e.facilities[1].train_data);
  EXPECT_EQ(spec.training.steps, 7);
  EXPECT_EQ(spec.training.first_step, 14);
}

// The first facility trains two epochs a round.
config::Experiment experiment_of_epochs() {
  config::Experiment e = experiment();
  e.facilities[0].training.steps = 0;
  e.facilities[0].training.epochs = 2;
  return e;
}

TEST(JobSpec, OfEpochsTrainsUntilTheirEnd) {
  const config::Experiment e = experiment_of_epochs();
  const auto plan = next_round(e, kIdentity, {0, kModel});
  const job::JobSpec spec = job_spec(e, kIdentity, *plan, plan->facilities[0], 1);
  EXPECT_EQ(spec.training.steps, job::kStepsOfEpochs);
  EXPECT_EQ(spec.training.epochs, 2);
}

// The trainer counts the steps of the earlier rounds' epochs (docs/reference/job_json.md).
TEST(JobSpec, OfEpochsHasNoFirstStepInALaterRound) {
  const config::Experiment e = experiment_of_epochs();
  const auto plan = next_round(e, kIdentity, {2, kModel});
  const job::JobSpec spec = job_spec(e, kIdentity, *plan, plan->facilities[0], 1);
  EXPECT_EQ(spec.key.round, 3);
  EXPECT_EQ(spec.training.steps, job::kStepsOfEpochs);
  EXPECT_EQ(spec.training.first_step, 0);
}

TEST(JobSpec, TheOptimizerContinuesFromTheAcceptedAttempt) {
  config::Experiment e = experiment();
  const FacilityName alba("alba");
  const auto given = [&](const Done& done, int attempt) {
    const auto plan = next_round(e, kIdentity, done);
    return job_spec(e, kIdentity, *plan, plan->facilities[0], attempt).optimizer_path;
  };
  EXPECT_EQ(given({0, kModel}, 1), "");
  for (config::Facility& facility : e.facilities) facility.training.keep_optimizer = true;
  const std::string folder = "/scratch/p/0001-01234567/alba/optimizer/";
  EXPECT_EQ(given({0, kModel}, 1), folder + "none");
  EXPECT_EQ(given({1, kModel, {{FacilityName("brno"), 1}}}, 1), folder + "none")
      << "it had no update in the round before";
  const auto first = next_round(e, kIdentity, {0, kModel});
  const job::JobKey accepted = job_spec(e, kIdentity, *first, first->facilities[0], 2).key;
  const std::string left = folder + "r0001-" + accepted.nonce;
  EXPECT_EQ(given({1, kModel, {{alba, 2}}}, 1), left);
  EXPECT_EQ(given({1, kModel, {{alba, 2}}}, 3), left) << "whatever attempt this is";
}

TEST(JobSpec, NamesTheAdapterAndItsBaseModel) {
  const std::string model(64, 'b');
  const auto plan = next_round(experiment(), kIdentity, {1, kModel, {}, model});
  const job::JobSpec spec = job_spec(experiment(), kIdentity, *plan, plan->facilities[0], 1);
  EXPECT_EQ(spec.base_model_sha256, model);
  EXPECT_EQ(spec.base_model_path, "/scratch/p/0001-01234567/alba/models/bbbbbbbbbbbbbbbb");
  EXPECT_EQ(spec.adapter_sha256, kModel);
  EXPECT_EQ(spec.adapter_path, "/scratch/p/0001-01234567/alba/models/aaaaaaaaaaaaaaaa");
  const auto whole = next_round(experiment(), kIdentity, {1, kModel});
  EXPECT_EQ(job_spec(experiment(), kIdentity, *whole, whole->facilities[0], 1).adapter_path, "");
  EXPECT_NE(format_plan(*plan), format_plan(*whole));
}

TEST(NextRound, IsOfTheMembers) {
  config::Experiment e = experiment();
  e.policy.on_missing = config::OnMissing::kSkip;
  e.policy.quorum = 3;
  Done done{0, kModel};
  const auto all = next_round(e, kIdentity, done);
  ASSERT_EQ(all->facilities.size(), 3u);
  EXPECT_EQ(all->quorum, 3);
  const FacilityName left = all->facilities[1].facility;
  done.left = {left};
  const auto rest = next_round(e, kIdentity, done);
  ASSERT_EQ(rest->facilities.size(), 2u);
  EXPECT_EQ(rest->quorum, 2) << "not more than the members";
  for (const FacilityPlan& facility : rest->facilities) EXPECT_NE(facility.facility, left);
  done.members = {left};  // the round is planned: its members stay
  ASSERT_EQ(next_round(e, kIdentity, done)->facilities.size(), 1u);
  EXPECT_EQ(next_round(e, kIdentity, done)->facilities[0].facility, left);
  e.policy.on_missing = config::OnMissing::kWait;
  done.members.clear();
  EXPECT_EQ(next_round(e, kIdentity, done)->quorum, 2);
}

// Retention deletes old model folders, and no other folder beside them.
TEST(FacilityLayout, AModelFolderHas16HexDigits) {
  EXPECT_TRUE(is_model_folder_name(model_folder_name(kModel)));
  EXPECT_TRUE(is_model_folder_name("0123456789abcdef"));
  for (const char* other : {"my-own-models-16", "0123456789ABCDEF", "0123456789abcde", ""})
    EXPECT_FALSE(is_model_folder_name(other)) << other;
  EXPECT_FALSE(is_model_folder_name(kModel));
}

// A facility's folder may hold any names.
TEST(FacilityLayout, ARoundFolderHasTheNumberOfItsRound) {
  EXPECT_EQ(parse_round_name(round_folder(RemotePath("/f"), 12).filename()), 12);
  EXPECT_EQ(parse_round_name("r12345678"), 12345678);
  for (const char* other : {"r123456789", "r99999999999999999999", "r001", "x0001", "r00a1", ""})
    EXPECT_FALSE(parse_round_name(other)) << other;
}

TEST(JobName, DiffersBetweenTwoRunsOfTheSameNumber) {
  const job::JobKey key{"demo", "0007", 2, "alba", 3, std::string(32, '0')};
  EXPECT_EQ(job_name({RunName("0007"), "0123456789abcdef0123456789abcdef"}, key),
            "xffl-demo-0007-01234567-r0002-alba-a3");
  EXPECT_EQ(job_name({RunName("0007"), "fedcba98765432100123456789abcdef"}, key),
            "xffl-demo-0007-fedcba98-r0002-alba-a3");
}

}  // namespace
}  // namespace xffl::plan
