// `xffl doctor --job` with jobs of this machine and the real trainer on two CPU ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "support/await.h"
#include "support/faulty_session.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/config/load.h"
#include "xffl/facility/services.h"
#include "xffl/job/check_report.h"
#include "xffl/tokens/token_shard.h"
#include "xffl/trial/trial.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kCheckBin = XFFL_BINARY_DIR "/bin";

class CheckJob : public testing::Test {
 protected:
  CheckJob() {
    checkpoint::LlamaConfig config;
    config.vocab_size = 64;
    config.hidden_size = 32;
    config.intermediate_size = 64;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = 4;
    config.head_dim = 8;
    config.max_position_embeddings = 32;
    write_file_atomic(dir_ / "config.json", checkpoint::format_llama_config(config));
    const ProcessResult made = run_process(
        {.argv = {kCheckBin + std::string("/xffl-train"), "init", "--config",
                  (dir_ / "config.json").string(), "--output", (dir_ / "model").string()}});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    write_shard(64);
    write_config("data.tokens");
  }
  void write_shard(uint64_t vocabulary) const {
    tokens::TokenShardWriter writer(dir_ / "data.tokens", vocabulary, 16, true);
    std::vector<int32_t> ids(16 * 32);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 60);
    writer.add_document(ids);
    writer.finish();
  }
  void write_config(const std::string& data, int steps = 40, int patience_s = 3,
                    const std::string& commands = "") const {
    write_file_atomic(dir_ / "xffl.yaml",
                      "project: p\nmodel: model\nrounds: 1\ntraining: {steps_per_round: " +
                          std::to_string(steps) +
                          ", batch_size: 4, micro_batch_size: 1, precision: fp32}\n"
                          "facilities:\n  alba:\n    world_size: 2\n"
                          "    environment: [export OMP_NUM_THREADS=1, export "
                          "XFFL_CHECK_PATIENCE=" +
                          std::to_string(patience_s) + commands + "]\n    data: {train: [" + data +
                          "]}\n");
  }
  ProcessResult xffl(std::vector<std::string> argv) const {
    argv.insert(argv.begin(), kCheckBin + std::string("/xffl"));
    argv.insert(argv.end(), {"-p", dir_.path().string()});
    return run_process({.argv = argv, .timeout = std::chrono::seconds(120)});
  }
  ProcessResult check() const { return xffl({"doctor", "--job", "alba", "--yes"}); }

  test::TempDir dir_;
  // Checks alba by a job. Calls `after_stat` after each stat() there.
  trial::Kept check(
      const std::function<void(test::FaultySession&, const RemotePath&)>& after_stat) const {
    const config::Experiment experiment = config::load_experiment(dir_.path());
    SystemClock clock;
    facility::Services services = facility::make_services(clock, dir_.path());
    const auto local = remote::make_local_session();
    const auto link = std::make_shared<test::FaultySession>(*local);
    link->after_stat = [&](const RemotePath& path) { after_stat(*link, path); };
    services.connect = [&](const config::Facility&) { return link; };
    services.programs = {kCheckBin + std::string("/xffl"), kCheckBin + std::string("/xffl-train")};
    return trial::check_by_job(experiment, experiment.facility(FacilityName("alba")), services, {},
                               {}, {});
  }

  const std::vector<std::string> command_{kCheckBin + std::string("/xffl"),
                                          "doctor",
                                          "--job",
                                          "alba",
                                          "--yes",
                                          "-p",
                                          dir_.path().string()};
};

TEST_F(CheckJob, MeasuresStepsAndPlanShowsThem) {
  const ProcessResult refused = xffl({"doctor", "--job", "alba"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("xffl doctor --job alba --yes"));
  const ProcessResult done = check();
  ASSERT_EQ(done.exit_code, 0) << done.err << done.out;
  EXPECT_THAT(done.out, HasSubstr("1 of 1 nodes have answered"));
  EXPECT_THAT(done.out, HasSubstr("all-reduce of 2 ranks on 1 nodes"));
  EXPECT_THAT(done.out, HasSubstr("reached 2 of 2 ranks"));
  EXPECT_THAT(done.out, HasSubstr("a round of 40 steps takes"));
  EXPECT_THAT(done.out, HasSubstr("all checks passed"));
  for (const auto& entry : fs::recursive_directory_iterator(dir_.path()))
    EXPECT_EQ(entry.path().string().find("/job1/model"), std::string::npos) << entry.path();
  EXPECT_THAT(xffl({"plan", "--offline"}).out, HasSubstr("measured "));
  EXPECT_THAT(xffl({"plan", "--offline"}).out, Not(HasSubstr("has changed since")));
  write_config("data.tokens", 80);  // other steps of the same training
  EXPECT_THAT(xffl({"plan", "--offline"}).out, HasSubstr("a round of 80 steps"));
  EXPECT_THAT(xffl({"plan", "--offline"}).out, Not(HasSubstr("has changed since")));
  fs::rename(dir_ / "data.tokens", dir_ / "other.tokens");
  write_config("other.tokens");
  EXPECT_THAT(xffl({"plan", "--offline"}).out, HasSubstr("has changed since"));
}

// The facility's whole set would outlast the check's walltime.
TEST_F(CheckJob, MeasuresABatchOfEachRankOfTheValidationSets) {
  std::string yaml = read_file(dir_ / "xffl.yaml", 10'000);
  yaml.replace(yaml.find("data: {"), 7, "data: {validation: {v: data.tokens}, ");
  write_file_atomic(dir_ / "xffl.yaml", yaml);
  const ProcessResult done = check();
  ASSERT_EQ(done.exit_code, 0) << done.err << done.out;
  std::string job;
  for (const auto& entry : fs::recursive_directory_iterator(dir_.path()))
    if (entry.path().string().ends_with("/job1/job.json")) job = read_file(entry.path(), 1 << 20);
  EXPECT_EQ(parse_json(job, "job.json").at("training").at("validation_samples"), 2);
}

TEST_F(CheckJob, PrintsItsResultsAsJson) {
  const ProcessResult done = xffl({"doctor", "--job", "alba", "--yes", "--json"});
  ASSERT_EQ(done.exit_code, 0) << done.err << done.out;
  const Json json = parse_json(done.out, "stdout");
  EXPECT_EQ(json.at("facility"), "alba");
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_EQ(json.at("job_number"), 1);
  EXPECT_GT(json.at("step_seconds").get<double>(), 0);
  bool has_signal = false;
  for (const Json& result : json.at("results")) {
    EXPECT_TRUE(result.at("severity") == "ok" || result.at("severity") == "warning") << result;
    has_signal = has_signal || result.at("check") == "signal";
  }
  EXPECT_TRUE(has_signal) << done.out;
  write_shard(65);
  const ProcessResult failed = xffl({"doctor", "--job", "alba", "--yes", "--json"});
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_THAT(failed.err, HasSubstr("checks failed"));
  bool has_error = false;
  const Json failure = parse_json(failed.out, "stdout");
  for (const Json& result : failure.at("results"))
    has_error = has_error || result.at("severity") == "error";
  EXPECT_TRUE(has_error) << failed.out;
}

// The job's last check fails, and no other one.
TEST_F(CheckJob, ATrainerThatDoesNotStartIsAnErrorWithJson) {
  write_file_atomic(dir_ / "xffl.yaml",
                    "project: p\nmodel: model\nrounds: 1\ntraining: {steps_per_round: 40, "
                    "batch_size: 4}\nfacilities:\n"
                    "  alba: {trainer: {program: /bin/false}, data: {train: [data.tokens]}}\n");
  const ProcessResult failed = xffl({"doctor", "--job", "alba", "--yes", "--json"});
  EXPECT_EQ(failed.exit_code, exit_code(ErrorKind::kFailed)) << failed.out << failed.err;
  const Json json = parse_json(failed.out, "stdout");
  for (const Json& result : json.at("results"))
    EXPECT_EQ(result.at("severity") == "error", result.at("check") == "trainer") << result;
  EXPECT_EQ(json.at("results").back().at("check"), "trainer");
}

TEST_F(CheckJob, KeepsTheLastFoldersOnly) {
  const fs::path checks = dir_ / "work/alba/xffl.checks";
  ASSERT_EQ(check().exit_code, 0);
  const std::string own = fs::directory_iterator(checks)->path().filename().string();
  ASSERT_EQ(own.substr(0, 7), "p.alba-");
  fs::rename(checks / own / "job1", checks / own / "job9");  // in a listing, job10 precedes it
  for (const char* other : {"p.alba-0000000", "q.alba-00000001", "p.alba-0000000g"})
    make_dirs(checks / other);
  for (int i = 1; i <= 4; ++i) {
    const fs::path old = checks / ("p.alba-0000000" + std::to_string(i));
    make_dirs(old / "job1");
    fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(i));
  }
  // The first command shows the result of job9, which none has shown.
  for (int job = 9; job <= 12; ++job) ASSERT_EQ(check().exit_code, 0) << job;
  std::set<std::string> left, jobs;
  for (const auto& entry : fs::directory_iterator(checks))
    left.insert(entry.path().filename().string());
  for (const auto& entry : fs::directory_iterator(checks / own))
    jobs.insert(entry.path().filename().string());
  EXPECT_THAT(
      left, testing::UnorderedElementsAre(own, "p.alba-00000001", "p.alba-00000002",
                                          "p.alba-0000000", "q.alba-00000001", "p.alba-0000000g"));
  EXPECT_THAT(jobs, testing::UnorderedElementsAre("job10", "job11", "job12"));
}

TEST_F(CheckJob, CtrlCCancelsTheJob) {
  fs::remove(dir_ / "data.tokens");
  ASSERT_EQ(::mkfifo((dir_ / "data.tokens").c_str(), 0600), 0);  // the job waits for it
  write_config("data.tokens", 40, 300);  // longer than this test waits for the job's end
  const pid_t command = start_detached({.argv = command_}, dir_ / "output");
  const auto output = [&] { return read_file(dir_ / "output", 1 << 20); };
  const auto owner = [&]() -> std::string {
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / "work"))
      if (entry.path().filename() == "owner") return read_file(entry.path(), 1000);
    return "";
  };
  ASSERT_TRUE(test::await([&] { return fs::exists(dir_ / "work") && !owner().empty(); }));
  const std::string job = owner().substr(0, owner().find(' '));
  ::kill(command, SIGINT);
  EXPECT_TRUE(test::await([&] {
    return output().find("stopped; job " + job + " is cancelled") != std::string::npos;
  })) << output();
  EXPECT_TRUE(test::await([&] { return !process_start_ticks(std::stoi(job)); })) << job;
}

TEST_F(CheckJob, AJobThatEndsBetweenTwoLooksIsFollowed) {
  const fs::path hold = dir_ / "hold";
  write_file_atomic(hold, "");
  write_config("data.tokens", 40, 3, ", 'while [ -e " + hold.string() + " ]; do sleep 0.1; done'");
  const pid_t command = start_detached({.argv = command_}, dir_ / "output");
  const auto file = [&](std::string_view name) -> fs::path {
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / "work"))
      if (entry.path().filename() == name) return entry.path();
    return {};
  };
  ASSERT_TRUE(test::await([&] { return fs::exists(dir_ / "work") && !file("job.id").empty(); }));
  ::kill(command, SIGKILL);
  wait_for_exit(command);

  bool has_ended = false;
  const auto after_stat = [&](test::FaultySession&, const RemotePath& path) {
    if (!path.str().ends_with(job::kCheckReport) || has_ended) return;
    fs::remove(hold);
    has_ended = test::await([&] { return !file("check.json").empty(); });
  };
  const trial::Kept kept = check(after_stat);
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(kept.job_number, 1) << "no second job is submitted";
}

TEST_F(CheckJob, AFailedCleanUpLosesNoResults) {
  const auto after_stat = [](test::FaultySession& link, const RemotePath& path) {
    if (path.str().ends_with(job::kCheckReport) && fs::exists(path.str()))
      link.lose_reply("remove_tree");
  };
  const trial::Kept kept = check(after_stat);
  EXPECT_FALSE(kept.results.empty());
}

TEST_F(CheckJob, DataOfAnotherVocabularyIsNamed) {
  write_shard(65);
  const ProcessResult done = check();
  EXPECT_NE(done.exit_code, 0);
  EXPECT_THAT(done.out, HasSubstr("has a vocabulary of 65, the model has 64"));
  EXPECT_THAT(done.out, HasSubstr("xffl-tokenize encode"));
  const fs::recursive_directory_iterator files(dir_ / "work");
  EXPECT_TRUE(std::any_of(begin(files), end(files), [](const fs::directory_entry& entry) {
    return entry.path().filename() == "check.json";
  })) << "the command waits for the report of a failed check, too";
}

// A `df` of a nearly full disk, then of a nearly empty one.
TEST_F(CheckJob, TheFreeSpaceOfANodeIsCompared) {
  fs::create_directory(dir_ / "bin");
  write_config("data.tokens", 40, 3, ", 'export PATH=" + (dir_ / "bin").string() + ":$PATH'");
  for (const bool full : {true, false}) {
    write_file_atomic(dir_ / "bin/df",
                      std::string("#!/bin/sh\necho Filesystem 1024-blocks\necho disk 1000000 ") +
                          (full ? "999990 10 100% /\n" : "10 999990 1% /\n"));
    fs::permissions(dir_ / "bin/df", fs::perms::owner_all);
    const ProcessResult done = check();
    EXPECT_EQ(done.exit_code == 0, !full) << done.out << done.err;
    EXPECT_EQ(done.out.find("free in the work folder; a round needs") != std::string::npos, full)
        << done.out;
  }
}

TEST_F(CheckJob, AHungMountIsNamedAndDoesNotHangTheJob) {
  fs::remove(dir_ / "data.tokens");
  ASSERT_EQ(::mkfifo((dir_ / "data.tokens").c_str(), 0600), 0);
  const ProcessResult done = check();
  EXPECT_NE(done.exit_code, 0);
  EXPECT_THAT(done.out, HasSubstr("data.tokens does not end"));
}

}  // namespace
}  // namespace xffl
