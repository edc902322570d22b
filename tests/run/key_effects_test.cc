// Each key of the sections policy, aggregation, slurm, transfer and deploy, from the text of
// xffl.yaml to its effect, with a value other than the default. The test PolicyKey.MaxAttempts
// belongs to the key policy.max_attempts; KeyEffects.EachKeyHasATest compares the tests with the
// table of keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "small_federation.h"
#include "support/fake_session.h"
#include "support/thrown.h"
#include "xffl/facility/budget.h"
#include "xffl/facility/driver.h"
#include "xffl/facility/job_script.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/facility/packed_models.h"
#include "xffl/facility/services.h"
#include "xffl/plan/round_plan.h"
#include "xffl/submit/slurm.h"

namespace xffl::run {
namespace {

using facility::FacilityPolicy;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// --- The table of keys -----------------------------------------------------------------------

struct Section {
  std::string prefix;  // of its rows in the reference of keys
  std::string suite;   // of its tests
};
const std::vector<Section> kSections = {{"policy.", "PolicyKey"},
                                        {"aggregation.", "AggregationKey"},
                                        {"facilities.<facility>.slurm.", "SlurmKey"},
                                        {"facilities.<facility>.transfer.", "TransferKey"},
                                        {"facilities.<facility>.deploy.", "DeployKey"}};

// "max_attempts" -> "MaxAttempts", "budget.warn_at" -> "BudgetWarnAt".
std::string test_name(const std::string& key) {
  std::string name;
  bool upper = true;
  for (const char c : key) {
    const bool ends_word = c == '_' || c == '.';
    if (!ends_word) name += upper ? static_cast<char>(std::toupper(c)) : c;
    upper = ends_word;
  }
  return name;
}

std::set<std::string> expected_tests() {
  std::set<std::string> tests;
  std::istringstream rows(config::key_reference());
  for (std::string row; std::getline(rows, row);)
    for (const Section& section : kSections)
      if (const std::string begin = "| `" + section.prefix; row.starts_with(begin))
        tests.insert(
            section.suite + "." +
            test_name(row.substr(begin.size(), row.find('`', begin.size()) - begin.size())));
  return tests;
}

std::set<std::string> registered_tests() {
  std::set<std::string> tests;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (const Section& section : kSections)
      for (int j = 0; section.suite == suite.name() && j < suite.total_test_count(); ++j)
        tests.insert(section.suite + "." + suite.GetTestInfo(j)->name());
  }
  return tests;
}

TEST(KeyEffects, EachKeyHasATest) {
  const std::set<std::string> expected = expected_tests(), registered = registered_tests();
  EXPECT_GE(expected.size(), 41u);
  for (const std::string& name : expected)
    EXPECT_TRUE(registered.contains(name))
        << "a key of xffl.yaml has no test of its effect: add " << name << " to " << __FILE__;
  for (const std::string& name : registered)
    EXPECT_TRUE(expected.contains(name)) << name << " belongs to no key of xffl.yaml";
}

// --- policy ----------------------------------------------------------------------------------

class PolicyKey : public test::SmallFederation {
 protected:
  // The policy that the state machine of alba obeys.
  FacilityPolicy machine_policy(const std::string& policy) const {
    const config::Experiment parsed = experiment("policy: {" + policy + "}\n");
    return facility::facility_policy(parsed, parsed.facilities.front(), milliseconds(0));
  }
  run::Outcome run_with(const std::string& policy, int rounds = 1) {
    return run("policy: {" + policy + "}\n", rounds);
  }
};

TEST_F(PolicyKey, OnMissing) {
  rejected_["brno"] = "there is no such account";
  trainings_["alba"].duration = hours(3);  // brno is missing while alba trains
  EXPECT_EQ(run_with("on_missing: skip").rounds_published, 1);
  EXPECT_EQ(master_weight(0), 0.5f) << "alba's update alone is the mean";
  EXPECT_THAT(test::message_of(ErrorKind::kFailed,
                               [&] {
                                 std::filesystem::remove_all(run_folder().path());
                                 run_with("on_missing: fail");
                               }),
              HasSubstr("policy.on_missing is fail"));
}

TEST_F(PolicyKey, Quorum) {
  rejected_["brno"] = "there is no such account";
  EXPECT_THAT(
      test::message_of(ErrorKind::kFailed, [&] { run_with("on_missing: skip, quorum: 2"); }),
      HasSubstr("1 of 2 updates, 2 needed"));
}

// Both facilities submit at the same moment; the job of either one fits, and not both.
TEST_F(PolicyKey, BudgetNodeHours) {
  facility_keys_ = "scheduler: slurm, slurm: {nodes: 2, time: 1h}, ";
  const std::string policy = "on_missing: skip, deadline: 2h, evaluate_last: false";
  EXPECT_EQ(run_with(policy + ", budget: {node_hours: 3.9}").rounds_published, 1);
  EXPECT_EQ(jobs_of("alba").size() + jobs_of("brno").size(), 1u);
  const history::RunState state = history::read_newest(run_folder().journal());
  int missing = 0;
  for (const auto& [name, facility] : state.rounds.at(1).facilities)
    if (facility.missing) ++missing;
  EXPECT_EQ(missing, 1) << "the paused facility does not hold up the round";
  ASSERT_EQ(state.paused.size(), 1u);
  EXPECT_EQ(state.paused.begin()->second,
            "policy.budget.node_hours is 3.90: the jobs so far need 2.00 node-hours, and the whole "
            "walltime of the next job 2.00");
  std::filesystem::remove_all(run_folder().path());
  EXPECT_EQ(run_with(policy + ", budget: {node_hours: 4}").rounds_published, 1);
  EXPECT_EQ(jobs_of("alba").size() + jobs_of("brno").size(), 3u);
}

TEST_F(PolicyKey, Budget) { EXPECT_EQ(experiment("").policy.budget, config::Budget{}); }

TEST_F(PolicyKey, BudgetWarnAt) {
  facility_keys_ = "scheduler: slurm, slurm: {nodes: 2, time: 1h}, ";
  const config::Budget budget =
      experiment("policy: {budget: {node_hours: 10, warn_at: 0.3}}\n").policy.budget;
  EXPECT_FALSE(facility::budget_warning(budget, 2.9 * 3600));
  EXPECT_EQ(facility::budget_warning(budget, 3 * 3600),
            "3.00 of 10.0 node-hours are used or reserved by jobs");
}

// tests/run/stop_rules_test.cc has the rules themselves.
TEST_F(PolicyKey, StopWhen) {
  EXPECT_EQ(run_with("evaluate_last: false", 2).rounds_published, 2) << "no rule";
}
TEST_F(PolicyKey, StopWhenNoBetterFor) {
  EXPECT_EQ(run_with("evaluate_last: false, stop_when: {no_better_for: 2}", 5).rounds_published, 3);
}
TEST_F(PolicyKey, StopWhenLossBelow) {
  EXPECT_EQ(run_with("evaluate_last: false, stop_when: {loss_below: 2.1}", 5).rounds_published, 1);
}
TEST_F(PolicyKey, StopWhenGainPerNodeHour) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, ";
  EXPECT_EQ(
      run_with("evaluate_last: false, stop_when: {gain_per_node_hour: 0.1}", 9).rounds_published,
      4);
}
TEST_F(PolicyKey, StopWhenWallClock) {
  clock_.advance(hours(24 * 365 * 100));
  EXPECT_EQ(run_with("evaluate_last: false, stop_when: {wall_clock: 30d}", 9).rounds_published, 1);
}

TEST_F(PolicyKey, QuorumGrace) {
  const facility::Now now{.time = hours(9),
                          .since_first_submission = hours(1),
                          .since_quorum = minutes(2),
                          .paused = {}};
  const auto limit =
      facility::deadline(machine_policy("on_missing: skip, quorum: 1, quorum_grace: 7m"), now);
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->left, minutes(5));
  EXPECT_TRUE(limit->after_quorum);
  EXPECT_TRUE(limit->ends_attempts);
  EXPECT_FALSE(
      facility::deadline(machine_policy("on_missing: skip, quorum: 1, quorum_grace: 0s"), now)
          ->after_quorum);
}

TEST_F(PolicyKey, Deadline) {
  const facility::Now now{.time = hours(9), .since_first_submission = hours(2), .paused = {}};
  EXPECT_EQ(facility::deadline(machine_policy("deadline: 5h, on_missing: skip"), now)->left,
            hours(3));
  EXPECT_TRUE(
      facility::deadline(machine_policy("deadline: 5h, on_missing: fail"), now)->ends_attempts);
  EXPECT_FALSE(facility::deadline(machine_policy("max_attempts: 3"), now));
}

TEST_F(PolicyKey, MaxAttempts) {
  ends_["brno"] = {.state = submit::JobState::kEnded};
  EXPECT_EQ(run_with("on_missing: skip, max_attempts: 4, evaluate_last: false").rounds_published,
            1);
  EXPECT_EQ(jobs_of("brno").size(), 4u);
}

TEST_F(PolicyKey, RerunBudget) {
  ends_["brno"] = {.state = submit::JobState::kEnded, .cause = submit::EndCause::kInfrastructure};
  EXPECT_EQ(run_with("on_missing: skip, rerun_budget: 3, evaluate_last: false").rounds_published,
            1);
  EXPECT_EQ(jobs_of("brno").size(), 4u) << "a job and three further ones";
}

TEST_F(PolicyKey, PollInterval) {
  EXPECT_EQ(facility::query_interval(machine_policy("poll_interval: 7m"), hours(1), false),
            minutes(7));
}

TEST_F(PolicyKey, KeepRounds) {
  run_with("keep_rounds: 3", 5);
  for (const char* name : {"alba", "brno"})
    for (const job::JobSpec& job : jobs_of(name))
      EXPECT_EQ(has_folder(job), job.key.round > 2) << name << ", round " << job.key.round;
  for (int round = 0; round <= 5; ++round)
    EXPECT_EQ(std::filesystem::exists(run_folder().master(round)), round >= 2) << round;
}

TEST_F(PolicyKey, KeepUpdates) {
  run_with("keep_updates: 2, keep_rounds: 9", 5);
  for (const char* name : {"alba", "brno"})
    for (int round = 1; round <= 5; ++round)
      EXPECT_EQ(
          std::filesystem::exists(run_folder().facility(round, FacilityName(name)) / "update"),
          round >= 4)
          << name << ", round " << round;
  EXPECT_TRUE(std::filesystem::exists(run_folder().global(1))) << "another key";
}

TEST_F(PolicyKey, KeepModels) {
  run_with("keep_models: 3", 5);
  for (int round = 0; round <= 5; ++round)
    EXPECT_EQ(std::filesystem::exists(run_folder().global(round)), round == 0 || round >= 3)
        << round;
  EXPECT_TRUE(std::filesystem::exists(run_folder().facility(1, FacilityName("alba")) / "update"));
}

TEST_F(PolicyKey, MaxOutage) {
  sessions_["brno"] = std::make_shared<test::DeadSession>();
  EXPECT_EQ(run_with("on_missing: skip, max_outage: 3h, evaluate_last: false").rounds_published, 1);
  EXPECT_GE(clock_.elapsed(), hours(3));
  EXPECT_LT(clock_.elapsed(), hours(4));
}

TEST_F(PolicyKey, OnWalltime) {
  run_with("on_walltime: resume");
  EXPECT_EQ(jobs_of("alba").at(0).on_stop, job::OnStop::kCheckpoint);
}

TEST_F(PolicyKey, EvaluateLast) {
  run_with("evaluate_last: false");
  EXPECT_EQ(jobs_of("brno").size(), 1u);
  std::filesystem::remove_all(run_folder().path());
  run_with("evaluate_last: true");
  ASSERT_EQ(jobs_of("brno").size(), 3u);
  EXPECT_EQ(jobs_of("brno").back().training.steps, 0) << "measures the last model";
}

TEST_F(PolicyKey, MaxChange) {
  trainings_["brno"].step = 1.0f;  // the model's weights are 0 to 7/8
  EXPECT_THAT(test::message_of(ErrorKind::kFailed, [&] { run_with("max_change: 0.9"); }),
              HasSubstr("policy.max_change"));
  // The norm of the change is 11.7, the model's is 6.1.
  std::filesystem::remove_all(run_folder().path());
  EXPECT_EQ(run_with("max_change: 2").rounds_published, 1);
  trainings_["brno"].step = 64.0f;
  std::filesystem::remove_all(run_folder().path());
  EXPECT_EQ(run_with("max_change: 1000").rounds_published, 1);
  EXPECT_EQ(master_weight(0), 32.25f);
}

// --- aggregation -----------------------------------------------------------------------------

class AggregationKey : public test::SmallFederation {
 protected:
  void run_with(const std::string& aggregation) {
    run("policy: {evaluate_last: false}\naggregation: {" + aggregation + "}\n");
  }
};

TEST_F(AggregationKey, Weights) {
  trainings_["alba"] = {.step = 1.0f, .samples = 2, .tokens = 96};
  trainings_["brno"] = {.step = 0.5f, .samples = 6, .tokens = 32};
  run_with("weights: samples");
  EXPECT_EQ(master_weight(0), 0.625f) << "(2 * 1 + 6 * 0.5) / 8";
  std::filesystem::remove_all(run_folder().path());
  run_with("weights: equal");
  EXPECT_EQ(master_weight(0), 0.75f);
  std::filesystem::remove_all(run_folder().path());
  run_with("weights: tokens");
  EXPECT_EQ(master_weight(0), 0.875f) << "(96 * 1 + 32 * 0.5) / 128";
}

TEST_F(AggregationKey, MaxShare) {
  trainings_["alba"] = {.step = 1.0f, .samples = 4, .tokens = 96};
  trainings_["brno"] = {.step = 0.5f, .samples = 4, .tokens = 32};
  run_with("max_share: 0.5");
  EXPECT_EQ(master_weight(0), 0.75f) << "without the limit: (96 * 1 + 32 * 0.5) / 128";
}

// The table has one optimizer: another name is rejected with the names of the table.
TEST_F(AggregationKey, ServerOptimizer) {
  run_with("server_optimizer: fedavg");
  EXPECT_EQ(master_weight(0), 0.5f);
  EXPECT_THAT(test::message_of(ErrorKind::kConfig, [&] { run_with("server_optimizer: fedadam"); }),
              testing::AllOf(HasSubstr("fedadam"), HasSubstr("fedavg")));
}

TEST_F(AggregationKey, Update) {
  run_with("update: weights");
  EXPECT_EQ(jobs_of("alba").at(0).update_kind, job::UpdateKind::kWeights);
  EXPECT_EQ(master_weight(3), 3.0f / 8 + 0.5f) << "the mean is not added to the last model";
}

TEST_F(AggregationKey, UpdateDtype) {
  for (const char* name : {"alba", "brno"}) trainings_[name].step = 1.0f + 0x1p-20f;
  run_with("update_dtype: fp32");
  EXPECT_EQ(jobs_of("alba").at(0).update_dtype, job::FloatType::kFloat32);
  EXPECT_EQ(master_weight(0), 1.0f + 0x1p-20f) << "the update was rounded";
}

TEST_F(AggregationKey, PublishDtype) {
  for (const char* name : {"alba", "brno"}) trainings_[name].step = 1.0f;
  using Dtype = checkpoint::Dtype;
  for (const auto& [name, dtype] : std::map<std::string, Dtype>{
           {"bf16", Dtype::kBF16}, {"fp16", Dtype::kF16}, {"fp32", Dtype::kF32}}) {
    std::filesystem::remove_all(run_folder().path());
    run_with("publish_dtype: " + name);
    const checkpoint::ModelFolder model(run_folder().global(1));
    EXPECT_EQ(model.tensors().front().dtype, dtype) << name;
    EXPECT_EQ(weight(run_folder().global(1), 7), 1.875f) << name;
  }
}

// --- slurm -----------------------------------------------------------------------------------

// Answers as a Slurm that accepts each job and knows no other, and keeps the commands.
class SlurmSession final : public test::FakeSession {
 public:
  remote::CommandResult run(const std::vector<std::string>& argv, const std::string& text,
                            milliseconds timeout, std::stop_token) override {
    commands.push_back(argv);
    timeouts.push_back(timeout);
    texts.push_back(text);
    const bool asks = std::find(argv.begin(), argv.end(), "sbatch") == argv.end();
    return {.exit_code = 0, .out = asks ? "1000\nxffl-end\n" : "17\n", .err = {}};
  }
  std::vector<std::vector<std::string>> commands;
  std::vector<milliseconds> timeouts;
  std::vector<std::string> texts;
};

class SlurmKey : public testing::Test {
 protected:
  // Submits the job of an xffl.yaml with the section slurm.
  void submit(const std::string& slurm) {
    experiment_ = config::parse_experiment(
        "project: test\nmodel: /m\nrounds: 3\ntraining: {steps_per_round: 4, batch_size: 24, "
        "micro_batch_size: 1}\nfacilities:\n  alba:\n    scheduler: slurm\n    workdir: /scratch\n"
        "    trainer: {command: [train]}\n    data: {train: [/data/x.tokens]}\n    slurm: {" +
            slurm + "}\n",
        "xffl.yaml", "/project");
    const config::Facility& alba = experiment_.facilities.front();
    scheduler_ = alba.scheduler.manager().make(alba.scheduler, session_, clock_);
    rendered_ =
        facility::render_script(experiment_, facility::preview_state(), alba.name, 1, {"x", "t"});
    request_ = {.name = rendered_.job_name, .script = rendered_.script, .folder = rendered_.folder};
    scheduler_->submit(request_, {});
  }
  // Expects the option of sbatch in the command and in the script.
  void expect_option(const std::string& option) const {
    EXPECT_THAT(session_->commands.back(), Contains(option));
    EXPECT_THAT("\n" + session_->texts.back(), HasSubstr("\n#SBATCH " + option + "\n"));
  }
  void expect_in_script(const std::string& text) const {
    EXPECT_THAT(session_->texts.back(), HasSubstr(text));
  }
  // `xffl doctor --job` submits its job with these settings.
  submit::SlurmSettings settings_of_check() const {
    submit::QueueSettings settings = experiment_.facilities.front().scheduler;
    settings.manager().shorten(settings, 2, std::chrono::minutes(10));
    return settings.as<submit::SlurmSettings>();
  }

  // `xffl deploy` submits its job with these settings.
  submit::SlurmSettings settings_of_cpu_job() const {
    submit::QueueSettings settings = experiment_.facilities.front().scheduler;
    settings.manager().use_cpu_queue(settings);
    return settings.as<submit::SlurmSettings>();
  }

  config::Experiment experiment_;
  test::FakeClock clock_;
  std::shared_ptr<SlurmSession> session_ = std::make_shared<SlurmSession>();
  std::shared_ptr<submit::Scheduler> scheduler_;
  facility::RenderedScript rendered_;
  submit::JobRequest request_;
};

TEST_F(SlurmKey, Account) {
  submit("account: theirs");
  expect_option("--account=theirs");
}
TEST_F(SlurmKey, Partition) {
  submit("partition: 'boost,other'");
  expect_option("--partition=boost,other");
}
TEST_F(SlurmKey, Qos) {
  submit("qos: long");
  expect_option("--qos=long");
}
TEST_F(SlurmKey, CheckPartition) {
  submit("partition: boost, check_partition: debug");
  expect_option("--partition=boost");
  EXPECT_EQ(settings_of_check().partition, "debug");
}
TEST_F(SlurmKey, CheckQos) {
  submit("qos: long, check_qos: short");
  expect_option("--qos=long");
  EXPECT_EQ(settings_of_check().qos, "short");
}
TEST_F(SlurmKey, CpuPartition) {
  submit("partition: boost, qos: long, gpus_per_node: 4, cpu_partition: serial");
  expect_option("--partition=boost");
  const submit::SlurmSettings settings = settings_of_cpu_job();
  EXPECT_EQ(settings.partition, "serial");
  EXPECT_EQ(settings.qos, "");
  EXPECT_EQ(settings.gpus_per_node, 0);
}
TEST_F(SlurmKey, CpuQos) {
  submit("partition: common, qos: project, gpus_per_node: 4, memory_per_node: 100GB, cpu_qos: cpu");
  expect_option("--qos=project");
  const submit::SlurmSettings settings = settings_of_cpu_job();
  EXPECT_EQ(settings.partition, "common");
  EXPECT_EQ(settings.qos, "cpu");
  EXPECT_EQ(settings.gpus_per_node, 0);
  EXPECT_EQ(settings.memory_per_node, 0);
}
TEST_F(SlurmKey, VisibleGpus) {
  submit("gpus_per_node: 4, visible_gpus: all");
  expect_in_script("'--gpu-bind=none' train");
  submit("gpus_per_node: 4, visible_gpus: one");
  expect_in_script("export CUDA_VISIBLE_DEVICES=\"$own\"");
}
TEST_F(SlurmKey, Constraint) {
  submit("constraint: a100&nvlink");
  expect_option("--constraint=a100&nvlink");
}
TEST_F(SlurmKey, Reservation) {
  submit("reservation: school");
  expect_option("--reservation=school");
}
TEST_F(SlurmKey, Nodes) {
  submit("nodes: 3");
  expect_option("--nodes=3");
  expect_in_script("'--nodes=3' '--ntasks=3'");
  EXPECT_EQ(experiment_.facilities[0].world_size, 3);
}
TEST_F(SlurmKey, GpusPerNode) {
  submit("gpus_per_node: 4");
  expect_option("--gpus-per-node=4");
  expect_option("--ntasks-per-node=4");
  expect_in_script("'--ntasks=4'");
}
TEST_F(SlurmKey, GpuType) {
  submit("gpus_per_node: 4, gpu_type: a100");
  expect_option("--gpus-per-node=a100:4");
}
TEST_F(SlurmKey, GpuOption) {
  submit("gpus_per_node: 4, gpu_option: gres");
  expect_option("--gres=gpu:4");
}
TEST_F(SlurmKey, TasksPerNode) {
  submit("nodes: 2, gpus_per_node: 4, tasks_per_node: 2");
  expect_option("--ntasks-per-node=2");
  expect_in_script("'--ntasks=4' '--ntasks-per-node=2'");
}
TEST_F(SlurmKey, CpusPerTask) {
  submit("cpus_per_task: 6");
  expect_option("--cpus-per-task=6");
  expect_in_script("'--cpus-per-task=6'");
}
TEST_F(SlurmKey, MemoryPerNode) {
  submit("memory_per_node: 3GiB");
  expect_option("--mem=3072M");
}
TEST_F(SlurmKey, Exclusive) {
  submit("exclusive: true");
  expect_option("--exclusive");
}
TEST_F(SlurmKey, Time) {
  submit("time: 1570m");
  expect_option("--time=26:10:00");
}
TEST_F(SlurmKey, Warning) {
  submit("warning: 10m");
  expect_option("--signal=B:USR1@600");
}
TEST_F(SlurmKey, Cluster) {
  submit("cluster: big");
  expect_option("--clusters=big");
  const submit::SubmittedJob job{JobId("17"), rendered_.job_name};
  scheduler_->query(std::span(&job, 1), {});
  scheduler_->cancel(job, {});
  ASSERT_EQ(session_->commands.size(), 4u) << "sbatch, squeue, sacct, scancel";
  for (const auto& command : session_->commands) EXPECT_THAT(command, Contains("--clusters=big"));
}
TEST_F(SlurmKey, Extra) {
  submit("extra: [--mail-type=END, --comment=x]");
  expect_option("--mail-type=END");
  expect_option("--comment=x");
}
TEST_F(SlurmKey, Srun) {
  submit("srun: [--cpu-bind=cores]");
  expect_in_script("'--cpu-bind=cores' train");
}
TEST_F(SlurmKey, SettleTime) {
  submit("settle_time: 7s");
  EXPECT_EQ(scheduler_->settle_time(), seconds(7));
}
TEST_F(SlurmKey, CommandTimeout) {
  submit("command_timeout: 13s");
  const submit::SubmittedJob job{JobId("17"), rendered_.job_name};
  scheduler_->query(std::span(&job, 1), {});
  scheduler_->find(request_, {});
  scheduler_->cancel(job, {});
  EXPECT_EQ(session_->timeouts.size(), 6u) << "sbatch, two each of squeue and sacct, scancel";
  EXPECT_THAT(session_->timeouts, testing::Each(milliseconds(seconds(13))));
}
TEST_F(SlurmKey, KeepAllocation) {
  submit("keep_allocation: 2h");
  expect_in_script("keep_seconds=7200");
  submit("nodes: 2");
  EXPECT_THAT(session_->texts.back(), Not(HasSubstr("keep_seconds=7200")));
  const auto next = [&](const std::string& slurm, int round) {
    submit(slurm);
    const auto plan =
        plan::next_round(experiment_, *facility::preview_state().identity, {round - 1, "0"});
    return facility::next_attempt_folder(experiment_, plan->facilities.front(), round);
  };
  EXPECT_TRUE(next("keep_allocation: 2h", 2));
  EXPECT_FALSE(next("keep_allocation: 2h", 3)) << "no job follows the last one";
  EXPECT_FALSE(next("nodes: 2", 2));
}

// --- transfer --------------------------------------------------------------------------------

class TransferKey : public testing::Test {
 protected:
  static config::Facility facility(const std::string& transfer) {
    return config::parse_experiment(
               "project: test\nmodel: /m\ntraining: {steps_per_round: 4, batch_size: 8}\n"
               "facilities:\n  alba:\n    access: ssh\n    scheduler: slurm\n    ssh: {hosts: "
               "[login.example.org], user: "
               "me}\n    workdir: /scratch\n    trainer: {command: [train]}\n"
               "    data: {train: [/data/x.tokens]}\n    transfer: {" +
                   transfer + "}\n",
               "xffl.yaml", "/project")
        .facilities.front();
  }
  static remote::SshSettings route(const std::string& transfer) {
    return facility::transfer_settings(facility(transfer), "/project");
  }
};

TEST_F(TransferKey, Hosts) {
  EXPECT_THAT(route("hosts: ['dtn1:2222', dtn2]").hosts,
              ElementsAre(remote::SshHost{"dtn1", 2222}, remote::SshHost{"dtn2", 22}));
  test::FakeClock clock;
  const facility::Services services = facility::make_services(clock, "/project");
  const config::Facility own = facility("hosts: [dtn1]");
  EXPECT_NE(services.connect_transfer(own), services.connect(own)) << "files have their own route";
  EXPECT_EQ(services.connect_transfer(own), services.connect_transfer(own)) << "one connection";
}
TEST_F(TransferKey, User) {
  EXPECT_EQ(route("hosts: [dtn1], user: mover").user, "mover");
  EXPECT_EQ(route("hosts: [dtn1]").user, "me");
}
TEST_F(TransferKey, Shell) {
  EXPECT_FALSE(route("hosts: [dtn1], shell: false").shell);
  EXPECT_TRUE(route("hosts: [dtn1]").shell);
}
TEST_F(TransferKey, Pack) {
  plan::RoundPlan second;
  second.round = 2;
  const facility::StateOf trained_before = [](int) {
    history::FacilityState state;
    state.accepted.emplace();
    return state;
  };
  const auto packs = [&](const std::string& pack) {
    return facility::takes_packed(facility(pack), second, 1, trained_before);
  };
  EXPECT_TRUE(packs("pack: always")) << "the trainer is another program: auto is false";
  EXPECT_FALSE(packs("pack: auto"));
  EXPECT_FALSE(packs("pack: never"));
}

// --- deploy ----------------------------------------------------------------------------------

// tests/deploy/deploy_job_test.cc has the deployments by a job, tests/e2e those of the command.
TEST(DeployKey, Unpack) {
  const auto facility = [](const std::string& keys) {
    return config::parse_experiment(
               "project: test\nmodel: /m\ntraining: {steps_per_round: 4}\nfacilities:\n"
               "  alba: {data: {train: [/data/x.tokens]}" +
                   keys + "}\n",
               "xffl.yaml", "/project")
        .facilities.front();
  };
  EXPECT_EQ(facility("").deploy.unpack, config::UnpackPlace::kLogin);
  EXPECT_EQ(facility(", deploy: {unpack: job}").deploy.unpack, config::UnpackPlace::kJob);
}

}  // namespace
}  // namespace xffl::run
