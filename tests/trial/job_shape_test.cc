// The check job's view of the facility, and its training; tests/e2e/ runs whole checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_clock.h"
#include "support/fake_scheduler.h"
#include "support/fake_session.h"
#include "support/forwarding_scheduler.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "support/tiny_model.h"
#include "xffl/base/file.h"
#include "xffl/config/load.h"
#include "xffl/facility/job_script.h"
#include "xffl/job/check_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/submit/slurm.h"
#include "xffl/trial/trial.h"

namespace xffl::trial {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;

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
  test::write_tiny_model(folder / "model", test::kTinyRows, [](size_t) { return 0.0f; });
  return config::parse_experiment(
      "project: p\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 4, batch_size: 48, "
      "micro_batch_size: 1}\nfacilities:\n  alba:\n    scheduler: slurm\n    slurm: {nodes: 4, "
      "tasks_per_node: 2}\n    workdir: /scratch\n    trainer: {command: [train]}\n"
      "    data: {train: [/data/x.tokens]}\n",
      "xffl.yaml", folder);
}

class CheckByJob : public testing::Test {
 protected:
  CheckByJob() { facility_.library_path = {"/opt/fabric"}; }
  // Calls `on_submission` once the job is submitted.
  Kept check(const std::function<void()>& on_submission, std::stop_token stop = {}, int nodes = 1) {
    return check_by_job(experiment_, facility_, services_, {.nodes = nodes}, std::move(stop),
                        {.on_state = [&](const std::string&) { on_submission(); }});
  }
  // The path of a file in the folder of the submitted job.
  RemotePath file(std::string_view name) const {
    const RemotePath checks("/scratch/xffl.checks");
    return checks / session_->list(checks).at(0) / "job1" / name;
  }

  const test::TempDir dir_;
  config::Experiment experiment_ = experiment_in(dir_.path());
  config::Facility& facility_ = experiment_.facilities.front();
  test::FakeClock clock_;
  test::FakeCluster cluster_;
  const std::shared_ptr<test::FakeSession> session_ = std::make_shared<test::FakeSession>();
  const std::shared_ptr<test::FakeScheduler> scheduler_ =
      std::make_shared<test::FakeScheduler>(cluster_);
  facility::Services services_{.clock = clock_,
                               .connect = [this](const auto&) { return session_; },
                               .connect_transfer = [this](const auto&) { return session_; },
                               .scheduler = [this](const auto&, auto) { return scheduler_; },
                               .programs = {"/x/xffl", "/x/xffl-train"}};
};

// The test stops the check after its submission.
TEST_F(CheckByJob, ARankHasTheSequencesOfARoundAndAFewSteps) {
  facility_.compute_mounts = {"/scratch", "/data:/compute"};
  facility_.training.steps = 0;
  facility_.training.epochs = 0.5;
  std::stop_source stop;
  EXPECT_EQ(test::kind_of([&] { check([&] { stop.request_stop(); }, stop.get_token()); }),
            ErrorKind::kCancelled);
  const auto content = [&](const char* name) { return session_->content(file(name).str()); };
  const job::JobSpec spec = job::parse_job_spec(content("job.json"), "job.json");
  EXPECT_EQ(spec.training.batch_size, 12) << "6 on each of the node's 2 ranks";
  EXPECT_EQ(spec.training.steps, 3);
  EXPECT_EQ(spec.training.epochs, 0);
  EXPECT_EQ(spec.train_paths, std::vector<std::string>{"/compute/x.tokens"});
  EXPECT_EQ(content("paths.txt"), "/scratch\n/compute/x.tokens\n/opt/fabric\n");
  EXPECT_FALSE(job_shape(facility_, services_.programs, {}).may_requeue);
  EXPECT_FALSE(cluster_.jobs().at(0).may_requeue);
}

TEST_F(CheckByJob, ARefusedCheckSubmitsNoJob) {
  const Callbacks refusing{
      .confirm = [] { throw Error(ErrorKind::kUsage, "nothing was submitted"); }, .on_state = {}};
  EXPECT_EQ(test::kind_of([&] {
              check_by_job(experiment_, facility_, services_, {.nodes = 1}, {}, refusing);
            }),
            ErrorKind::kUsage);
  EXPECT_TRUE(cluster_.jobs().empty());
}

// A node without a driver and without the facility's library; a round takes an hour.
TEST_F(CheckByJob, TheKeysOfTheFacilityAreTheExpectations) {
  facility_.trainer_command.clear();
  facility_.scheduler.as<submit::SlurmSettings>().gpus_per_node = 2;
  job::CheckReport report{.backend = "gloo", .ranks = 2, .nodes = 1};
  report.step_seconds = 900;
  report.step_tokens = 1000;
  report.complete = true;
  const Kept kept = check([&] {
    session_->put(file("out/node-0.txt").str(), "host n0\npath 2 missing\nend\n");
    session_->put(file("model/model.safetensors").str(), "weights of a job that was killed");
    session_->put(file(job::rank_check_file(0)).str(), job::format_rank_check({}));
    session_->put(file(job::kCheckReport).str(), job::format_check_report(report));
  });
  std::vector<std::string> messages;
  for (const CheckResult& result : kept.results) messages.push_back(result.message);
  EXPECT_THAT(messages, IsSupersetOf({HasSubstr("n0 has no NVIDIA driver"),
                                      HasSubstr("on n0 the library /opt/fabric does not exist"),
                                      HasSubstr("the walltime of 1 h does not suffice")}));
  EXPECT_FALSE(session_->stat(file("model/model.safetensors")));
  EXPECT_TRUE(session_->stat(file("out/node-0.txt")));
}

// The check has 2 of a round's 4 nodes, and 4 of its 8 ranks: 1000 tokens/s in place of 2000.
TEST_F(CheckByJob, EachNodeAndRankIsComparedWithTheModelAndARound) {
  facility_.trainer_command.clear();
  facility_.compute_mounts = {"/scratch", "/data:/compute"};
  facility_.validation = {{.name = "held-out", .path = "/data/v.tokens"}};
  facility_.training.validation_samples = 281'250;  // 18 million tokens
  session_->on_run = [](const std::vector<std::string>& argv, const std::string&) {
    const bool is_uname = argv.at(0) == "uname";
    return remote::CommandResult{.exit_code = is_uname ? 0 : 127, .out = "x86_64\n", .err = {}};
  };
  job::CheckReport report{.backend = "gloo", .ranks = 4, .nodes = 2};
  report.step_seconds = 1;
  report.step_tokens = 1000;
  report.complete = true;
  const auto on_submission = [&] {
    session_->put(file("out/node-0.txt").str(), "host n0\narch x86_64\npath 2 missing\nend\n");
    session_->put(file("out/node-2.txt").str(), "host n2\narch aarch64\npath 2 ok\nend\n");
    for (int rank = 0; rank < 4; ++rank) {
      job::RankCheck found{.rank = rank, .host = "n0"};
      found.data = {{.path = "/compute/x.tokens",
                     .vocab_size = 16,
                     .sequence_length = rank == 3 ? 65 : 64,
                     .problem = {}},
                    {.path = "/compute/v.tokens",
                     .vocab_size = 16,
                     .sequence_length = 64,
                     .sequences = 1'000'000,
                     .problem = {}}};
      session_->put(file(job::rank_check_file(rank)).str(), job::format_rank_check(found));
    }
    session_->put(file(job::kCheckReport).str(), job::format_check_report(report));
  };
  const Kept kept = check(on_submission, {}, 2);
  std::string messages;
  for (const CheckResult& result : kept.results) messages += result.message + "\n";
  EXPECT_THAT(messages, HasSubstr("2 of 2 nodes have answered\n"));
  EXPECT_THAT(messages, HasSubstr("n2 is aarch64, the log-in node is x86_64\n"));
  EXPECT_THAT(messages, HasSubstr("on n0 /compute/v.tokens does not exist\n"));
  EXPECT_THAT(messages, HasSubstr("/compute/x.tokens has sequences of 65 tokens, the model takes "
                                  "64\n"));
  EXPECT_THAT(messages, HasSubstr("0.0044 node-hours, and 100 min of validation; the walltime of "
                                  "1 h does not suffice\n"));
  EXPECT_EQ(kept.nodes, 2);
  EXPECT_EQ(kept.ranks, 4);
}

// The stop of the check cancels its job; the link is down by then.
TEST_F(CheckByJob, AJobThatMayGoOnAfterAStopIsNamed) {
  class Unreachable final : public test::ForwardingScheduler {
   public:
    using ForwardingScheduler::ForwardingScheduler;
    void cancel(const submit::SubmittedJob&, std::stop_token) override {
      throw Error(ErrorKind::kRemote, "the link is down");
    }
  };
  services_.scheduler = [this](const auto&, auto) {
    return std::make_shared<Unreachable>(scheduler_);
  };
  std::stop_source stop;
  const Error error =
      test::error_of([&] { check([&] { stop.request_stop(); }, stop.get_token()); });
  EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  EXPECT_THAT(error.what(),
              HasSubstr("job 1000 was not cancelled and may go on (the link is down)"));
}

// A check by a job of one node, with 1000 tokens in a step.
Kept kept_of_two_ranks(double step_seconds) {
  return {.utc = "2026-11-25T06:00:00Z",
          .settings_sha256 = "",
          .job = "7",
          .job_number = 1,
          .nodes = 1,
          .ranks = 2,
          .step_seconds = step_seconds,
          .step_tokens = 1000,
          .results = {}};
}
void write_kept(const config::Experiment& experiment, const Kept& kept) {
  const auto file = kept_file(experiment, experiment.facilities.front().name);
  make_dirs(file.parent_path());
  write_file_atomic(file, format_kept(kept));
}

// The check's job had one node. The warning comes 5 minutes before the end of a round's walltime.
TEST(KeptCheck, TheForecastHasTheNodesAndTheWalltimeOfARound) {
  const test::TempDir dir;
  const config::Experiment experiment = experiment_in(dir.path());
  const config::Facility& facility = experiment.facilities.front();
  write_kept(experiment, kept_of_two_ranks(900));
  EXPECT_THAT(describe_kept(experiment, facility, {"/x/xffl", "/x/xffl-train"}),
              HasSubstr("a round of 4 steps takes 1 h, 4 node-hours; the walltime of 1 h "
                        "does not suffice"));
}

// A round has 4 times the ranks of the check. The file of an earlier release has no sets.
TEST(KeptCheck, TheForecastHasTheValidationWithTheSamplesOfNow) {
  const test::TempDir dir;
  config::Experiment experiment = experiment_in(dir.path());
  config::Facility& facility = experiment.facilities.front();
  Kept kept = kept_of_two_ranks(1);
  EXPECT_EQ(format_kept(kept).find("validation"), std::string::npos);
  EXPECT_EQ(parse_kept(format_kept(kept), "kept"), kept);
  kept.validation = {{.sequences = 360'000, .sequence_length = 100}};  // 400 min on 2 ranks
  EXPECT_EQ(parse_kept(format_kept(kept), "kept"), kept);
  write_kept(experiment, kept);
  const auto line = [&] {
    return describe_kept(experiment, facility, {"/x/xffl", "/x/xffl-train"});
  };
  EXPECT_THAT(line(), HasSubstr("and 100 min of validation; the walltime of 1 h does not suffice"));
  facility.training.validation_samples = 36'000;
  EXPECT_THAT(line(), HasSubstr("and 10 min of validation; the walltime of 1 h suffices"));
}

}  // namespace
}  // namespace xffl::trial
