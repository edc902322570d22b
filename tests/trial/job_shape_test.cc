// The check job's view of the facility, and its training; tests/e2e/ runs whole checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_clock.h"
#include "support/fake_scheduler.h"
#include "support/fake_session.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/config/load.h"
#include "xffl/facility/job_script.h"
#include "xffl/job/job_spec.h"
#include "xffl/trial/trial.h"

namespace xffl::trial {
namespace {

TEST(NodePaths, AreThoseOfTheComputeNodes) {
  config::Facility facility;
  facility.workdir = RemotePath("/p/scratch/me");
  facility.compute_mounts = {"/p/scratch:/scratch", "/p/data"};
  facility.train_data = {"/p/data/it.xtk", "/p/scratch/me/it.xtk"};
  facility.validation = {{.name = "held out", .path = "/p/scratch/me/held_out.xtk"}};
  EXPECT_EQ(node_paths(facility),
            (std::vector<std::string>{"/scratch/me", "/p/data/it.xtk", "/scratch/me/it.xtk",
                                      "/scratch/me/held_out.xtk"}));
}

// The job script exports them as they are.
TEST(NodePaths, OfLibrariesAreNotTranslated) {
  config::Facility facility;
  facility.compute_mounts = {"/p/scratch:/scratch"};
  facility.library_path = {"/p/scratch/lib/libcxi.so.1", "/opt/fabric/lib"};
  facility.nccl_plugin = "/opt/ofi/libnccl-net.so";
  facility.cuda_compat = "/opt/cuda/compat";
  EXPECT_EQ(facility::site_libraries(facility),
            (std::vector<std::string>{"/p/scratch/lib/libcxi.so.1", "/opt/fabric/lib",
                                      "/opt/ofi/libnccl-net.so", "/opt/cuda/compat"}));
}

// A round has 4 steps of 48 sequences on 4 nodes.
config::Experiment experiment_in(const std::filesystem::path& folder) {
  make_dirs(folder / "model");
  write_file_atomic(folder / "model/config.json", "{}");
  return config::parse_experiment(
      "project: p\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 4, batch_size: 48, "
      "micro_batch_size: 1}\nfacilities:\n  alba:\n    scheduler: slurm\n    slurm: {nodes: 4, "
      "tasks_per_node: 2}\n    workdir: /scratch\n    trainer: {command: [train]}\n"
      "    data: {train: [/data/x.tokens]}\n",
      "xffl.yaml", folder);
}

// The test stops the check after its submission.
TEST(CheckSpec, ARankHasTheSequencesOfARoundAndAFewSteps) {
  const test::TempDir dir;
  config::Experiment experiment = experiment_in(dir.path());
  config::Facility& facility = experiment.facilities.front();
  facility.compute_mounts = {"/scratch", "/data:/compute"};
  facility.library_path = {"/opt/fabric"};
  facility.training.steps = 0;
  facility.training.epochs = 0.5;
  test::FakeClock clock;
  test::FakeCluster cluster;
  const auto session = std::make_shared<test::FakeSession>();
  const auto scheduler = std::make_shared<test::FakeScheduler>(cluster);
  facility::Services services{.clock = clock,
                              .connect = [&](const auto&) { return session; },
                              .connect_transfer = [&](const auto&) { return session; },
                              .scheduler = [&](const auto&, auto) { return scheduler; },
                              .programs = {"/x/xffl", "/x/xffl-train"}};
  std::stop_source stop;
  EXPECT_EQ(test::kind_of([&] {
              check_by_job(experiment, facility, services, {.nodes = 1}, stop.get_token(),
                           {.on_state = [&](const std::string&) { stop.request_stop(); }});
            }),
            ErrorKind::kCancelled);
  const RemotePath checks("/scratch/xffl.checks");
  const RemotePath folder = checks / session->list(checks).at(0) / "job1";
  const auto content = [&](const char* name) { return session->content((folder / name).str()); };
  const job::JobSpec spec = job::parse_job_spec(content("job.json"), "job.json");
  EXPECT_EQ(spec.training.batch_size, 12) << "6 on each of the node's 2 ranks";
  EXPECT_EQ(spec.training.steps, 3);
  EXPECT_EQ(spec.training.epochs, 0);
  EXPECT_EQ(spec.train_paths, std::vector<std::string>{"/compute/x.tokens"});
  EXPECT_EQ(content("paths.txt"), "/scratch\n/compute/x.tokens\n/opt/fabric\n");
  EXPECT_FALSE(job_shape(facility, services.programs, {}).may_requeue);
}

// The check's job had one node. The warning comes 5 minutes before the end of a round's walltime.
TEST(KeptCheck, TheForecastHasTheNodesAndTheWalltimeOfARound) {
  const test::TempDir dir;
  const config::Experiment experiment = experiment_in(dir.path());
  const config::Facility& facility = experiment.facilities.front();
  const Kept kept{.utc = "2026-11-25T06:00:00Z",
                  .settings_sha256 = "",
                  .job = "7",
                  .job_number = 1,
                  .nodes = 1,
                  .ranks = 2,
                  .step_seconds = 900,
                  .step_tokens = 1000,
                  .results = {}};
  make_dirs(kept_file(experiment, facility.name).parent_path());
  write_file_atomic(kept_file(experiment, facility.name), format_kept(kept));
  EXPECT_THAT(describe_kept(experiment, facility, {"/x/xffl", "/x/xffl-train"}),
              testing::HasSubstr("a round of 4 steps takes 1 h, 4 node-hours; the walltime of 1 h "
                                 "does not suffice"));
}

}  // namespace
}  // namespace xffl::trial
