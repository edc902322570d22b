// The settings of a tokenization (one task) and of a check (short), from those of a training, the
// check of the warning before the walltime, the settle time, and the request in a submission.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "support/fake_clock.h"
#include "support/fake_session.h"
#include "xffl/submit/flux.h"
#include "xffl/submit/grid_engine.h"
#include "xffl/submit/pbs.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/submit/scheduler.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

TEST(OneTask, HasTheProcessorsOfANodeTogether) {
  QueueSettings settings("slurm");
  SlurmSettings& slurm = settings.as<SlurmSettings>();
  slurm.nodes = 4;
  slurm.tasks_per_node = 3;
  slurm.cpus_per_task = 8;
  slurm.gpus_per_node = 3;
  slurm.account = "a";
  slurm.keep_allocation = std::chrono::hours(1);
  settings.manager().one_task(settings);
  EXPECT_EQ(slurm.nodes, 1);
  EXPECT_EQ(slurm.tasks_per_node, 1);
  EXPECT_EQ(slurm.cpus_per_task, 24);
  EXPECT_EQ(slurm.gpus_per_node, 3);
  EXPECT_EQ(slurm.account, "a");
  EXPECT_EQ(slurm.keep_allocation.count(), 0);
}

TEST(OneTask, HasTheSlotsOfOneGridEngineNode) {
  QueueSettings settings("gridengine");
  GridEngineSettings& engine = settings.as<GridEngineSettings>();
  engine.nodes = 4;
  engine.tasks_per_node = 3;
  settings.manager().one_task(settings);
  EXPECT_EQ(engine.nodes, 1);
  EXPECT_EQ(engine.tasks_per_node, 1);
  EXPECT_EQ(engine.slots(), 3);
}

TEST(OneTask, AndAShortJobHaveTheChunkOfAPbsNode) {
  QueueSettings settings("pbs");
  settings.as<PbsSettings>().nodes = 4;
  settings.as<PbsSettings>().tasks_per_node = 8;
  settings.as<PbsSettings>().chunk = {"mem=480gb"};
  settings.manager().shorten(settings, 2, std::chrono::minutes(15));
  settings.manager().one_task(settings);
  EXPECT_THAT(pbs_options(settings.as<PbsSettings>(), "job-a", RemotePath("/s/a1")),
              testing::Contains("-l select=1:ncpus=8:mpiprocs=1:mem=480gb"));
}

TEST(QueueManagers, AreAskedOnceAMinute) {
  for (const QueueManager* manager : queue_managers()) {
    if (manager->this_machine) continue;
    EXPECT_EQ(manager->poll_interval, std::chrono::minutes(1)) << manager->name;
  }
}

// The check of a facility compares them with the GPUs that it finds on a node.
TEST(TrainingJob, HasTheGpusOfANode) {
  QueueSettings slurm("slurm"), pbs("pbs");
  slurm.as<SlurmSettings>().gpus_per_node = 4;
  pbs.as<PbsSettings>().gpus_per_node = 4;
  for (const QueueSettings* settings : {&slurm, &pbs})
    EXPECT_EQ(settings->manager().shape(*settings, 1).gpus_per_node, 4) << settings->manager().name;
}

template <class Settings>
class ShortJob : public testing::Test {};
using Managers = testing::Types<SlurmSettings, GridEngineSettings, PbsSettings, FluxSettings>;
TYPED_TEST_SUITE(ShortJob, Managers);

template <class Settings>
QueueSettings training(int nodes) {
  const bool is_slurm = std::is_same_v<Settings, SlurmSettings>;
  const bool is_pbs = std::is_same_v<Settings, PbsSettings>;
  const bool is_flux = std::is_same_v<Settings, FluxSettings>;
  QueueSettings settings(is_slurm ? "slurm" : is_pbs ? "pbs" : is_flux ? "flux" : "gridengine");
  auto& values = settings.as<Settings>();
  values.nodes = nodes;
  values.tasks_per_node = 4;
  values.time = std::chrono::hours(12);
  values.warning = std::chrono::minutes(30);
  return settings;
}

TYPED_TEST(ShortJob, HasFewerNodesAndAShorterWalltimeWithItsWarning) {
  QueueSettings settings = training<TypeParam>(16);
  settings.manager().shorten(settings, 2, std::chrono::minutes(15));
  const JobShape shape = settings.manager().shape(settings, 1);
  EXPECT_EQ(shape.nodes, 2);
  EXPECT_EQ(shape.tasks_per_node, 4);
  EXPECT_EQ(shape.walltime, std::chrono::minutes(15));
  EXPECT_EQ(shape.warning, std::chrono::seconds(450));
  EXPECT_EQ(shape.keep_allocation.count(), 0);
}

TYPED_TEST(ShortJob, IsNeverLargerThanATraining) {
  QueueSettings settings = training<TypeParam>(1);
  settings.manager().shorten(settings, 2, std::chrono::hours(24));
  const JobShape shape = settings.manager().shape(settings, 1);
  EXPECT_EQ(shape.nodes, 1);
  EXPECT_EQ(shape.walltime, std::chrono::hours(12));
  EXPECT_EQ(shape.warning, std::chrono::minutes(30));
}

template <class Settings>
class Warning : public testing::Test {};
TYPED_TEST_SUITE(Warning, Managers);

TYPED_TEST(Warning, MustBeShorterThanTheWalltime) {
  const auto is_problem = [](std::chrono::seconds warning) {
    QueueSettings settings = training<TypeParam>(1);
    settings.as<TypeParam>().warning = warning;
    std::set<std::string, std::less<>> keys;
    settings.manager().complete(
        settings,
        {.is_set = [](std::string_view) { return true; },
         .problem = [&](std::string_view key, const std::string&) { keys.emplace(key); }});
    return keys.contains("warning");
  };
  EXPECT_FALSE(is_problem(std::chrono::hours(12) - std::chrono::seconds(1)));
  EXPECT_TRUE(is_problem(std::chrono::hours(12)));
}

template <class Settings>
class SettleTime : public testing::Test {};
TYPED_TEST_SUITE(SettleTime, Managers);

TYPED_TEST(SettleTime, IsThatOfTheSection) {
  QueueSettings settings = training<TypeParam>(1);
  settings.as<TypeParam>().settle_time = std::chrono::seconds(7);
  settings.as<TypeParam>().command_timeout = std::chrono::seconds(13);
  test::FakeClock clock;
  const auto scheduler =
      settings.manager().make(settings, std::make_shared<test::FakeSession>(), clock);
  EXPECT_EQ(scheduler->settle_time(), std::chrono::seconds(7));
}

template <class Settings>
class Request : public testing::Test {};
TYPED_TEST_SUITE(Request, Managers);

// A budget forbids a second start.
TYPED_TEST(Request, IsSubmittedWithItsFolderOnComputeNodesAndItsRequeueing) {
  QueueSettings settings = training<TypeParam>(1);
  settings.as<TypeParam>().tasks_per_node = 1;
  std::string command;
  const auto session = std::make_shared<test::FakeSession>();
  session->on_run = [&](const std::vector<std::string>& argv, const std::string&) {
    for (const std::string& word : argv) command += word + " ";
    return remote::CommandResult{0, "7\n", ""};
  };
  test::FakeClock clock;
  JobRequest request{"job-a", "true\n", RemotePath("/login/a1")};
  request.nodes_folder = RemotePath("/compute/a1");
  request.may_requeue = false;
  settings.manager().make(settings, session, clock)->submit(request, {});
  EXPECT_THAT(command, testing::HasSubstr("/compute/a1"));
  for (const char* wrong : {"/login", " --requeue ", " -r y "})
    EXPECT_THAT(command, testing::Not(testing::HasSubstr(wrong)));
}

}  // namespace
}  // namespace xffl::submit
