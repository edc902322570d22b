// Whole jobs with a tiny model, in this process: the counts of the report, early stopping,
// checkpoints, and groups of ranks. Ranks are threads over Gloo.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "support/ranks.h"
#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/dtype.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/llama/model_files.h"
#include "xffl/tokens/token_shard.h"
#include "xffl/train/check_job.h"
#include "xffl/train/run_job.h"

namespace {

ino_t unreadable_file = 0;  // its next reads fail
std::atomic<int> failing_reads = 0;
int error_of_reads = 0;

void fail_reads(const std::filesystem::path& path, int count, int error = ESTALE) {
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0) << path;
  unreadable_file = info.st_ino;
  failing_reads = count;
  error_of_reads = error;
}

bool fails(int fd) {
  struct stat info {};
  if (failing_reads <= 0 || ::fstat(fd, &info) != 0 || info.st_ino != unreadable_file) return false;
  --failing_reads;
  errno = error_of_reads;
  return true;
}

}  // namespace

extern "C" ssize_t read(int fd, void* to, size_t size) {
  return fails(fd) ? -1 : ::syscall(SYS_read, fd, to, size);
}

extern "C" ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  return fails(fd) ? -1 : ::syscall(SYS_pread64, fd, to, size, offset);
}

namespace xffl::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWords = 61;

struct JobOutcome {
  job::JobReport report;
  std::vector<Json> steps;          // lines of metrics.jsonl
  std::vector<double> losses;       // of the steps
  std::vector<double> validations;  // mid-training losses of the first set
  int64_t num_skipped = 0;
};

class WholeJob : public testing::Test {
 protected:
  WholeJob() {
    log::set_console_level(log::Level::kOff);
    write_model("base", 7);
  }

  /// Writes a model with random weights, and its manifest.
  void write_model(const std::string& name, uint64_t seed) const {
    checkpoint::LlamaConfig config;
    config.vocab_size = kWords;
    config.hidden_size = 24;
    config.intermediate_size = 40;
    config.num_layers = 1;
    config.num_heads = config.num_kv_heads = 2;
    config.head_dim = 12;
    config.max_position_embeddings = 64;
    const std::vector<llama::ParameterSpec> specs = llama::parameter_specs(config);
    const auto value = [&](size_t i) {
      const at::Tensor out = at::empty(specs[i].shape, at::kFloat);
      llama::initialize_parameter(specs[i], 0.1, seed, out);
      return out;
    };
    llama::write_model(dir_ / name, config, specs, value, checkpoint::Dtype::kF32);
    checkpoint::write_manifest(dir_ / name);
  }

  /// Random sequences of `shortest` to `longest` tokens.
  std::string write_tokens(const std::string& name, int count, int shortest, int longest) const {
    std::mt19937 random(static_cast<unsigned>(name.size()));
    tokens::TokenShardWriter writer(dir_ / name, kWords, longest, false);
    for (int i = 0; i < count; ++i) {
      const auto span = static_cast<unsigned>(longest - shortest + 1);
      std::vector<int32_t> ids(static_cast<size_t>(shortest) + random() % span);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % kWords);
      writer.add_document(ids);
    }
    writer.finish();
    return (dir_ / name).string();
  }

  std::string write_sequence(const std::string& name, const std::vector<int32_t>& ids) const {
    tokens::TokenShardWriter writer(dir_ / name, kWords, 8, false);
    writer.add_document(ids);
    writer.finish();
    return (dir_ / name).string();
  }

  job::JobSpec job(const std::string& name, const std::vector<std::string>& train_paths,
                   int attempt = 1) const {
    job::JobSpec spec;
    spec.key = {"p", "0001", 1, "alba", attempt, std::string(32, attempt == 1 ? 'a' : 'c')};
    spec.base_model_path = dir_ / "base";
    spec.base_model_sha256 = checkpoint::read_manifest(dir_ / "base").root_sha256();
    spec.train_paths = train_paths;
    const fs::path folder = dir_ / name / ("a" + std::to_string(attempt));
    spec.update_path = folder / "update";
    spec.report_path = folder / "report.json";
    spec.metrics_path = folder / "metrics.jsonl";
    spec.state_path = dir_ / name / "state";
    fs::create_directories(folder);
    spec.training.steps = 4;
    spec.training.batch_size = spec.training.micro_batch_size = 4;
    spec.training.learning_rate = 1e-2;
    spec.training.schedule.kind = job::ScheduleKind::kConstant;
    return spec;
  }

  /// A job that a request to finish ends with a checkpoint.
  job::JobSpec resumable_job(const std::string& name, const std::vector<std::string>& train_paths,
                             int attempt = 1) const {
    job::JobSpec spec = job(name, train_paths, attempt);
    spec.on_stop = job::OnStop::kCheckpoint;
    return spec;
  }

  static JobOutcome run(
      const job::JobSpec& spec, int ranks = 1,
      const std::function<StopRequest()>& stop = [] { return StopRequest::kNone; }) {
    JobOutcome outcome;
    const auto train = [&](comm::Group& world) {
      const JobContext context{world, at::kCPU, ranks, "test", stop};
      const job::JobReport report = Job(spec, context).run();
      if (world.rank() == 0) outcome.report = report;
    };
    if (ranks == 1)
      train(*comm::make_single_rank());
    else
      test::run_ranks(ranks, train);
    std::ifstream metrics(spec.metrics_path);
    for (std::string line; std::getline(metrics, line);) {
      const Json json = parse_json(line, "metrics.jsonl");
      if (json.contains("validation")) {
        outcome.validations.push_back(json["validation"].front());
        continue;
      }
      outcome.steps.push_back(json);
      outcome.losses.push_back(json["loss"]);
      if (json["grad_norm"].is_null()) ++outcome.num_skipped;
    }
    return outcome;
  }

  static size_t num_lines(const fs::path& path) {
    std::ifstream file(path);
    size_t lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }

  /// Asks a job to finish when its metrics have so many lines.
  static std::function<StopRequest()> finish_after(size_t lines, const job::JobSpec& spec) {
    return [lines, path = spec.metrics_path] {
      return num_lines(path) < lines ? StopRequest::kNone : StopRequest::kFinish;
    };
  }

  static void change_last_byte(const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const auto last = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(last);
    ASSERT_TRUE(file.good()) << path;
  }

  /// Runs two rounds that `change(first, second)` makes differ; returns why the second one did not
  /// continue from the first one's optimizer state.
  std::string optimizer_lost_after(
      const std::string& name,
      const std::function<void(job::JobSpec& first, job::JobSpec& second)>& change) const {
    const std::string data = write_tokens("t.tokens", 8, 2, 20);
    job::JobSpec first = job(name + "-first", {data}), second = job(name + "-second", {data});
    for (job::JobSpec* spec : {&first, &second}) {
      spec->training.keep_optimizer = true;
      spec->optimizer_path = dir_ / name / job::kNoOptimizerState;
    }
    second.key.round = 2;
    second.optimizer_path = dir_ / name / first.key.optimizer_state_name();
    change(first, second);
    const auto report_of = [](const job::JobSpec& spec) {
      return run(spec, static_cast<int>(spec.training.groups.count)).report;
    };
    report_of(first);
    return report_of(second).optimizer_lost;
  }

  static void set_groups(job::JobSpec& spec, int64_t interval) {
    spec.training.groups.count = 2;
    spec.training.groups.interval = interval;
    spec.training.groups.weighting = job::GroupWeighting::kTokens;
  }

  test::TempDir dir_;
};

TEST_F(WholeJob, ReportsTheMeanLossOfItsSteps) {
  const JobOutcome outcome = run(job("mean", {write_tokens("t.tokens", 8, 2, 20)}));
  ASSERT_EQ(outcome.losses.size(), 4u);
  double sum = 0;
  for (const double loss : outcome.losses) sum += loss;
  EXPECT_NEAR(outcome.report.train_loss, sum / 4, 1e-9);
  EXPECT_EQ(outcome.report.train_loss_last, outcome.losses.back());
  EXPECT_GT(std::abs(outcome.losses.back() - sum / 4), 1e-3);
  EXPECT_EQ(outcome.report.samples, 16);
}

// Each group learns the next words of its one sequence.
TEST_F(WholeJob, TheAccuracyCountsTheTokensOfAllGroupsAndSteps) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  job::JobSpec spec = job(
      "learnt", {write_sequence("a.tokens", {1, 1, 1}), write_sequence("b.tokens", {2, 2, 2, 2})});
  set_groups(spec, 100);
  spec.training.steps = 20;
  spec.training.batch_size = spec.training.micro_batch_size = 1;
  const JobOutcome outcome = run(spec, 2);
  double sum = 0;
  for (const Json& step : outcome.steps) sum += step["accuracy"].get<double>();
  EXPECT_EQ(outcome.steps.back()["accuracy"].get<double>(), 1);
  EXPECT_EQ(outcome.report.train_accuracy_last, 1);
  EXPECT_LT(sum / 20, 1);
  EXPECT_NEAR(outcome.report.train_accuracy, sum / 20, 1e-9);
}

// A sequence of one token has nothing to predict.
TEST_F(WholeJob, ABatchWithoutTargetsIsAStep) {
  job::JobSpec spec =
      job("empty", {write_sequence("a.tokens", {1}), write_sequence("b.tokens", {1, 2, 3})});
  spec.training.steps = 2;
  spec.training.batch_size = spec.training.micro_batch_size = 1;
  const job::JobReport report = run(spec).report;
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.tokens, 2);
}

// The first gradients overflow fp16: a prediction error of almost 1, times the first loss scale.
TEST_F(WholeJob, SamplesOfSkippedStepsDoNotCount) {
  job::JobSpec spec = job("fp16", {write_tokens("t.tokens", 1, 2, 2)});
  spec.training.precision = job::FloatType::kFloat16;
  spec.training.batch_size = spec.training.micro_batch_size = 1;
  spec.training.steps = 8;
  const JobOutcome outcome = run(spec);
  EXPECT_GT(outcome.num_skipped, 0);
  EXPECT_LT(outcome.num_skipped, 8);
  EXPECT_EQ(outcome.report.samples, 8 - outcome.num_skipped);
}

// The checkpoint's good steps decide whether the fourth step doubles the loss scale.
TEST_F(WholeJob, AStepThatDoublesTheLossScaleIsUnscaledByTheOldOne) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  std::vector<std::string> updates;
  for (const int good_steps : {3, 1999}) {
    const std::string name = "good-" + std::to_string(good_steps);
    job::JobSpec first = resumable_job(name, {data}), second = resumable_job(name, {data}, 2);
    for (job::JobSpec* spec : {&first, &second}) {
      spec->update_dtype = job::FloatType::kFloat32;
      spec->training.precision = job::FloatType::kFloat16;
      spec->training.optimizer = job::OptimizerKind::kSgd;
    }
    run(first, 1, finish_after(3, first));
    const fs::path file = fs::path(second.state_path) / "step-00000003/state.json";
    Json state = parse_json(read_file(file, 1 << 20), file.string());
    ASSERT_EQ(state["counts"][0][2].get<int>(), 3) << "no step was skipped";
    state["counts"][0][2] = good_steps;
    write_file_atomic(file, state.dump());
    const JobOutcome outcome = run(second);
    EXPECT_EQ(outcome.losses.size(), 1u);
    EXPECT_EQ(outcome.num_skipped, 0);
    updates.push_back(outcome.report.update_sha256);
  }
  EXPECT_EQ(updates[0], updates[1]);
}

TEST_F(WholeJob, EarlyStoppingCountsWorseValidationsInARow) {
  const std::string data = write_tokens("t.tokens", 4, 6, 12);
  job::JobSpec spec = job("patience", {data});
  spec.validation = {{"it", data}};
  spec.training.batch_size = spec.training.micro_batch_size = 1;
  spec.training.steps = 60;
  spec.training.validation_interval = 1;
  spec.training.early_stop_patience = 4;
  spec.training.early_stop_keep = job::EarlyStopKeep::kLast;
  const JobOutcome outcome = run(spec);
  double best = outcome.report.validation.at(0).nll_before;
  size_t in_a_row = 0, in_total = 0, fourth_in_total = 0, expected = 59;
  for (size_t i = 0; i < outcome.validations.size() && in_a_row < 4; ++i) {
    const bool is_worse = outcome.validations[i] >= best;
    in_a_row = is_worse ? in_a_row + 1 : 0;
    best = std::min(best, outcome.validations[i]);
    if (is_worse && ++in_total == 4) fourth_in_total = i + 1;
    if (in_a_row == 4) expected = i + 1;
  }
  EXPECT_EQ(outcome.validations.size(), expected);
  EXPECT_GT(fourth_in_total, 0u);
  EXPECT_LT(fourth_in_total, expected) << "the sum of worse validations would end at the same step";
}

TEST_F(WholeJob, AStopAfterACheckpointWritesNoOther) {
  job::JobSpec spec = job("stopped", {write_tokens("t.tokens", 8, 2, 20)});
  spec.on_stop = job::OnStop::kCheckpoint;
  spec.training.steps = 100;
  spec.training.checkpoint_interval = 2;
  const fs::path checkpoint = fs::path(spec.state_path) / "step-00000002";
  log::set_file(dir_ / "log");
  const JobOutcome outcome = run(
      spec, 1, [&] { return fs::exists(checkpoint) ? StopRequest::kFinish : StopRequest::kNone; });
  log::set_file({});
  EXPECT_TRUE(outcome.report.stopped_early);
  EXPECT_EQ(outcome.report.steps, 2);
  int num_saved = 0;
  std::ifstream file(dir_ / "log");
  for (std::string line; std::getline(file, line);)
    if (line.find("checkpoint saved") != std::string::npos) ++num_saved;
  EXPECT_EQ(num_saved, 1);
}

// Checkpoints that are unusable for this job, such as those of changed settings, may have more
// steps than a new one.
TEST_F(WholeJob, ANewCheckpointStaysBesideUnusableOnesOfMoreSteps) {
  const job::JobSpec spec = resumable_job("kept", {write_tokens("t.tokens", 8, 2, 20)});
  const fs::path state = spec.state_path;
  for (const char* name : {"step-00000500", "step-00000600"}) {
    make_dirs(state / name);
    write_file_atomic(state / name / "state.json", "{}");
  }
  run(spec, 1, finish_after(2, spec));
  EXPECT_TRUE(fs::exists(state / "step-00000002"));
}

// An abandoned attempt may still save its steps while a later attempt reads their checkpoint.
TEST_F(WholeJob, AUsableCheckpointOfTheSameStepsStays) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  const job::JobSpec first = resumable_job("twice", {data}),
                     second = resumable_job("twice", {data}, 2);
  run(first, 1, finish_after(2, first));
  const fs::path checkpoint = fs::path(second.state_path) / "step-00000002";
  const fs::path aside = dir_ / "aside", same_file = dir_ / "state.json";
  fs::create_hard_link(checkpoint / "state.json", same_file);
  fs::rename(checkpoint, aside);
  const JobOutcome outcome = run(second, 1, [&] {
    if (num_lines(second.metrics_path) < 2) return StopRequest::kNone;
    if (fs::exists(aside)) fs::rename(aside, checkpoint);
    return StopRequest::kFinish;
  });
  EXPECT_EQ(outcome.losses.size(), 2u) << "from the start, without the checkpoint";
  EXPECT_TRUE(fs::equivalent(checkpoint / "state.json", same_file));
}

// A power loss must not take the steps that a report counts.
TEST_F(WholeJob, ACheckpointIsSyncedUnderItsName) {
  const job::JobSpec spec = resumable_job("synced", {write_tokens("t.tokens", 8, 2, 20)});
  test::synced_sizes.clear();
  run(spec, 1, finish_after(2, spec));
  const fs::path state = spec.state_path, checkpoint = state / "step-00000002";
  EXPECT_TRUE(test::is_synced(state));
  EXPECT_TRUE(test::is_synced(checkpoint));
  EXPECT_TRUE(test::is_synced(checkpoint / "state.json"));
}

// With a report the coordinator would take the steps for saved.
TEST_F(WholeJob, AStopWithoutItsCheckpointHasNoReport) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec spec = resumable_job("unsaved", {data});
  spec.state_path = data;  // a file
  EXPECT_EQ(test::kind_of([&] { run(spec, 1, finish_after(2, spec)); }), ErrorKind::kIo);
  EXPECT_EQ(num_lines(spec.metrics_path), 2u);
  EXPECT_FALSE(fs::exists(spec.report_path));
}

TEST_F(WholeJob, AStopBetweenCheckpointsLosesNoStep) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec first = resumable_job("between", {data}),
               second = resumable_job("between", {data}, 2);
  for (job::JobSpec* spec : {&first, &second}) spec->training.checkpoint_interval = 2;
  const JobOutcome stopped = run(first, 1, finish_after(3, first));
  ASSERT_EQ(stopped.report.steps, 3);
  EXPECT_EQ(run(second).losses.size(), 1u) << "the fourth step";
}

// In a later round, whose steps do not begin at 0.
TEST_F(WholeJob, ARequeuedJobKeepsTheMetricsBeforeItsCheckpoint) {
  job::JobSpec spec = job("requeued", {write_tokens("t.tokens", 8, 2, 20)});
  spec.training.first_step = 10;
  spec.training.checkpoint_interval = 2;
  const auto stop = [&] {
    return num_lines(spec.metrics_path) < 3 ? StopRequest::kNone : StopRequest::kAbort;
  };
  EXPECT_EQ(test::kind_of([&] { run(spec, 1, stop); }), ErrorKind::kCancelled);
  std::vector<int64_t> steps;
  for (const Json& step : run(spec).steps) steps.push_back(step["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{11, 12, 13, 14}));
}

// The file system answers again after the second try, or not at all.
TEST_F(WholeJob, AnUnreadableCheckpointIsReadAgainAndNotReplaced) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  const job::JobSpec first = resumable_job("unread", {data}),
                     second = resumable_job("unread", {data}, 2);
  run(first, 1, finish_after(2, first));
  const fs::path part = fs::path(second.state_path) / "step-00000002/part-0001-of-0001.safetensors";
  fail_reads(part, 1000);
  EXPECT_EQ(test::kind_of([&] { run(second); }), ErrorKind::kIo);
  EXPECT_FALSE(fs::exists(second.metrics_path)) << "no step from the start";
  fail_reads(part, 2);
  EXPECT_EQ(run(second).losses.size(), 2u);
  EXPECT_EQ(failing_reads.load(), 0);
}

TEST_F(WholeJob, AnOlderCheckpointIsUsedWhileTheNewestOneCannotBeRead) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec first = resumable_job("older", {data});
  first.training.checkpoint_interval = 1;
  const job::JobSpec second = resumable_job("older", {data}, 2);
  run(first, 1, finish_after(2, first));
  fail_reads(fs::path(second.state_path) / "step-00000002/part-0001-of-0001.safetensors", 1000);
  EXPECT_EQ(run(second).losses.size(), 3u) << "the steps after the first one";
  failing_reads = 0;
}

TEST_F(WholeJob, ACheckpointWithABadSectorIsDamaged) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  const job::JobSpec first = resumable_job("sector", {data}),
                     second = resumable_job("sector", {data}, 2);
  run(first, 1, finish_after(2, first));
  fail_reads(fs::path(second.state_path) / "step-00000002/part-0001-of-0001.safetensors", 1000,
             EIO);
  EXPECT_EQ(run(second).losses.size(), 4u);
  failing_reads = 0;
}

// The coordinator sends a damaged model again, and leaves one alone that cannot be opened now.
TEST_F(WholeJob, AModelWithABadSectorIsReported) {
  const job::JobSpec spec = job("model", {write_tokens("t.tokens", 8, 2, 20)});
  for (const int error : {ESTALE, EIO}) {
    fail_reads(dir_ / "base/model.safetensors", 1000, error);
    EXPECT_EQ(test::kind_of([&] { run(spec); }), ErrorKind::kIo);
    EXPECT_EQ(fs::exists(spec.model_failure_path()), error == EIO);
  }
  failing_reads = 0;
}

TEST_F(WholeJob, ACheckpointOutlivesAnotherMountOfItsData) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  fs::create_directory_symlink(dir_.path(), dir_ / "mount");
  job::JobSpec first = resumable_job("mounted", {data}),
               second = resumable_job("mounted", {dir_ / "mount/t.tokens"}, 2);
  first.validation = {{"it", data}};
  second.validation = {{"it", second.train_paths[0]}};
  run(first, 1, finish_after(2, first));
  EXPECT_EQ(run(second).losses.size(), 2u);
}

TEST_F(WholeJob, AnAbandonedJobLeavesTheCheckpointsOfItsSuccessor) {
  job::JobSpec spec = job("late", {write_tokens("t.tokens", 8, 2, 20)});
  const fs::path attempt = dir_ / "late/a1";
  spec.report_path = attempt / "out/report.json";
  make_dirs(attempt / "out");
  make_dirs(attempt / "claim/fenced");
  const fs::path checkpoint = fs::path(spec.state_path) / "step-00000001";
  make_dirs(checkpoint);
  run(spec);
  EXPECT_TRUE(fs::exists(checkpoint));
}

TEST_F(WholeJob, AStateFolderThatCannotBeListedIsNotEmpty) {
  const job::JobSpec spec = job("unlisted", {write_tokens("t.tokens", 8, 2, 20)});
  fs::create_symlink(spec.state_path, spec.state_path);  // ELOOP
  EXPECT_EQ(test::kind_of([&] { run(spec); }), ErrorKind::kIo);
  EXPECT_FALSE(fs::exists(spec.metrics_path)) << "no step from the start";
}

// A facility's budget counts the seconds of each attempt. The first attempt's steps took an hour.
TEST_F(WholeJob, AResumedJobReportsItsOwnSeconds) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  const job::JobSpec first = resumable_job("seconds", {data}),
                     second = resumable_job("seconds", {data}, 2);
  run(first, 1, finish_after(2, first));
  const fs::path file = fs::path(second.state_path) / "step-00000002/state.json";
  Json state = parse_json(read_file(file, 1 << 20), file.string());
  Json report = parse_json(state["report"].get<std::string>(), "report");
  report["train_seconds"] = 3600.0;
  state["report"] = report.dump();
  write_file_atomic(file, state.dump());
  const auto begin = std::chrono::steady_clock::now();
  const job::JobReport found = run(second).report;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(found.train_seconds, 3600);
  EXPECT_GT(found.total_seconds, found.train_seconds - 3600);
  EXPECT_LE(found.total_seconds, elapsed.count());
}

TEST_F(WholeJob, AStopDuringAValidationKeepsTheSteps) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec spec = job("interrupted", {data});
  spec.validation = {{"it", data}};
  spec.training.validation_interval = 2;
  const JobOutcome outcome = run(spec, 1, finish_after(2, spec));
  EXPECT_TRUE(outcome.validations.empty());
  EXPECT_EQ(outcome.report.steps, 2);
  EXPECT_NE(outcome.report.update_sha256, "");
}

// The training learns the first set and not the second one.
TEST_F(WholeJob, EachValidationSetHasItsOwnResult) {
  const std::string data = write_sequence("t.tokens", {1, 1, 1}),
                    other = write_sequence("v.tokens", {1, 2, 3, 4});
  const auto results_of = [&](const std::string& name,
                              const std::vector<job::ValidationSet>& sets) {
    job::JobSpec spec = job(name, {data});
    spec.validation = sets;
    spec.training.steps = 20;
    spec.training.batch_size = spec.training.micro_batch_size = 1;
    return run(spec).report.validation;
  };
  const auto both = results_of("both", {{"it", data}, {"cs", other}});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_TRUE(both[0] == results_of("first", {{"it", data}}).at(0));
  EXPECT_TRUE(both[1] == results_of("second", {{"cs", other}}).at(0));
  EXPECT_NE(both[0].tokens, both[1].tokens);
  EXPECT_NE(both[0].nll_before, both[1].nll_before);
  EXPECT_NE(both[0].nll_after, both[1].nll_after);
  EXPECT_NE(both[0].accuracy_after, both[1].accuracy_after);
}

// A repeated validation would count as one without improvement.
TEST_F(WholeJob, AResumedJobDoesNotRepeatAValidation) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec first = resumable_job("measured", {data}),
               second = resumable_job("measured", {data}, 2);
  for (job::JobSpec* spec : {&first, &second}) {
    spec->validation = {{"it", data}};
    spec->training.validation_interval = 2;
  }
  const JobOutcome stopped = run(first, 1, finish_after(3, first));
  ASSERT_EQ(stopped.report.steps, 2);
  ASSERT_EQ(stopped.validations.size(), 1u);
  const JobOutcome resumed = run(second);
  EXPECT_EQ(resumed.losses.size(), 2u);
  EXPECT_TRUE(resumed.validations.empty());
}

// The last validation amid the training is a step earlier.
TEST_F(WholeJob, TheLossAfterTheTrainingIsThatOfItsLastStep) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec plain = job("plain", {data}), measured = job("measured", {data});
  for (job::JobSpec* spec : {&plain, &measured}) {
    spec->validation = {{"it", data}};
    spec->training.steps = 3;
  }
  measured.training.validation_interval = 2;
  const JobOutcome outcome = run(measured);
  ASSERT_EQ(outcome.validations.size(), 1u);
  EXPECT_NE(outcome.report.validation.at(0).nll_after, outcome.validations[0]);
  EXPECT_TRUE(outcome.report.validation == run(plain).report.validation);
}

// Losses of other sequences say nothing about the improvement.
TEST_F(WholeJob, EarlyStoppingDoesNotResumeWithAnotherValidation) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  for (const int64_t patience : {0, 9}) {
    const std::string name = "patience-" + std::to_string(patience);
    job::JobSpec first = resumable_job(name, {data}), second = resumable_job(name, {data}, 2);
    for (job::JobSpec* spec : {&first, &second}) {
      spec->validation = {{"it", data}};
      spec->training.validation_interval = 1;
      spec->training.early_stop_patience = patience;
    }
    second.training.validation_samples = 3;
    run(first, 1, finish_after(4, first));  // lines of two steps and their validations
    EXPECT_EQ(run(second).losses.size(), patience == 0 ? 2u : 4u);
  }
}

// Each step lowers the loss.
TEST_F(WholeJob, AResumedJobReplacesTheBestSnapshotByABetterOne) {
  const std::string data = write_tokens("t.tokens", 4, 6, 12);
  job::JobSpec first = resumable_job("better", {data}), second = resumable_job("better", {data}, 2);
  for (job::JobSpec* spec : {&first, &second}) {
    spec->validation = {{"it", data}};
    spec->training.steps = 100;
    spec->training.learning_rate = 1e-3;
    spec->training.validation_interval = 1;
    spec->training.early_stop_patience = 100;
    run(*spec, 1, finish_after(4, *spec));  // lines of two steps and their validations
  }
  const fs::path state = second.state_path;
  EXPECT_TRUE(fs::exists(state / "step-00000004"));
  EXPECT_TRUE(fs::exists(state / "best-00000004"));
  const fs::path file = state / "step-00000004/state.json";
  const Json saved = parse_json(read_file(file, 1 << 20), file.string());
  EXPECT_EQ(saved.at("worse_validations").get<int>(), 0);
}

// A job may continue from the older checkpoint if the newer one is damaged.
TEST_F(WholeJob, EachCheckpointKeepsItsBestSnapshot) {
  const std::string data = write_tokens("t.tokens", 4, 6, 12);
  job::JobSpec spec = job("snapshots", {data});
  spec.validation = {{"it", data}};
  spec.on_stop = job::OnStop::kCheckpoint;
  spec.training.steps = 100;
  spec.training.learning_rate = 1e-3;  // each step lowers the loss
  spec.training.validation_interval = 1;
  spec.training.early_stop_patience = 100;
  spec.training.checkpoint_interval = spec.training.keep_checkpoints = 2;
  const fs::path state = spec.state_path;
  run(spec, 1, [&] {
    return fs::exists(state / "step-00000006") ? StopRequest::kFinish : StopRequest::kNone;
  });
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(state))
    left.insert(entry.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{"best-00000004", "best-00000006", "step-00000004",
                                         "step-00000006"}));
}

// Only the head is trained, so each step makes the other next word less likely: the first
// validation stays the best one.
TEST_F(WholeJob, ADamagedBestSnapshotIsNotRestored) {
  const std::string data = write_sequence("t.tokens", {1, 1}),
                    other = write_sequence("v.tokens", {1, 2});
  for (const bool is_damaged : {false, true}) {
    job::JobSpec spec = job(is_damaged ? "damaged" : "intact", {data});
    spec.validation = {{"it", other}};
    spec.training.freeze = {"model.*"};
    spec.training.validation_interval = 1;
    spec.training.early_stop_patience = 2;
    const fs::path best = fs::path(spec.state_path) / "best-00000001/part-0001-of-0001.safetensors";
    bool done = !is_damaged;
    const JobOutcome outcome = run(spec, 1, [&] {
      if (!done && fs::exists(best)) {
        change_last_byte(best);
        done = true;
      }
      return StopRequest::kNone;
    });
    EXPECT_TRUE(done);
    EXPECT_EQ(outcome.losses.size(), 2u);
    EXPECT_EQ(outcome.report.steps, is_damaged ? 2 : 1) << "the last model's, or the best one's";
  }
}

// The input model has learnt the validation's next word, and each step makes it less likely.
TEST_F(WholeJob, ARestoredSnapshotHasItsOwnAccuracy) {
  const std::string data = write_sequence("t.tokens", {1, 1}),
                    other = write_sequence("v.tokens", {1, 2});
  job::JobSpec learnt = job("learnt", {other});
  learnt.update_kind = job::UpdateKind::kWeights;
  learnt.training.freeze = {"model.*"};
  learnt.training.steps = 20;
  const job::JobReport input = run(learnt).report;
  for (const bool keep_best : {true, false}) {
    job::JobSpec spec = job(keep_best ? "best" : "last", {data});
    spec.base_model_path = learnt.update_path;
    spec.base_model_sha256 = input.update_sha256;
    spec.validation = {{"it", other}};
    spec.training.freeze = {"model.*"};
    spec.training.steps = 100;
    spec.training.validation_interval = 1;
    spec.training.early_stop_patience = 40;
    if (!keep_best) spec.training.early_stop_keep = job::EarlyStopKeep::kLast;
    const job::JobReport report = run(spec).report;
    EXPECT_EQ(report.steps, keep_best ? 1 : 40);
    EXPECT_EQ(report.validation.at(0).accuracy_after, keep_best ? 1 : 0);
  }
}

// An earlier attempt may still be writing a new part into its folder.
TEST_F(WholeJob, ACheckpointRemovesTemporaryFoldersThatNoAttemptWritesTo) {
  job::JobSpec spec = resumable_job("abandoned", {write_tokens("t.tokens", 8, 2, 20)}, 2);
  const fs::path abandoned = fs::path(spec.state_path) / "step-00000001.a1.tmp",
                 in_use = fs::path(spec.state_path) / "step-00000003.a1.tmp";
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(2);
  for (const fs::path& folder : {abandoned, in_use}) {
    make_dirs(folder);
    write_file_atomic(folder / "part", "x");
    if (folder == abandoned) fs::last_write_time(folder / "part", long_ago);
    fs::last_write_time(folder, long_ago);
  }
  run(spec, 1, finish_after(2, spec));
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(in_use));
}

// An earlier attempt may still be writing.
TEST_F(WholeJob, ACheckpointRemovesTemporaryFoldersOfItsAttemptOnly) {
  job::JobSpec spec = job("temporary", {write_tokens("t.tokens", 8, 2, 20)}, 2);
  spec.on_stop = job::OnStop::kCheckpoint;
  const fs::path earlier = fs::path(spec.state_path) / "step-00000001.a1.tmp",
                 own = fs::path(spec.state_path) / "step-00000001.a2.tmp";
  for (const fs::path& folder : {earlier, own}) fs::create_directories(folder);
  run(spec, 1, finish_after(2, spec));
  EXPECT_TRUE(fs::exists(earlier));
  EXPECT_FALSE(fs::exists(own));
}

TEST_F(WholeJob, AnEarlyFinishKeepsTheOptimizerState) {
  job::JobSpec spec = job("early", {write_tokens("t.tokens", 8, 2, 20)});
  spec.key.round = 2;
  spec.training.keep_optimizer = true;
  spec.optimizer_path = dir_ / "optimizer" / job::kNoOptimizerState;
  // An abandoned attempt may save its state after a later round.
  const fs::path later = dir_ / "optimizer" / ("r0003-" + std::string(32, 'b'));
  make_dirs(later);
  const JobOutcome outcome = run(spec, 1, finish_after(2, spec));
  EXPECT_EQ(outcome.report.steps, 2);
  EXPECT_TRUE(fs::exists(later));
  EXPECT_TRUE(fs::exists(dir_ / "optimizer" / spec.key.optimizer_state_name() / "state.json"));
}

// A state of hundreds of gigabytes may take longer than the rest of the walltime.
TEST_F(WholeJob, AWarningInTheLastStepWritesTheReportFirst) {
  job::JobSpec spec = job("last", {write_tokens("t.tokens", 8, 2, 20)});
  spec.training.steps = 2;
  spec.training.keep_optimizer = true;
  spec.optimizer_path = dir_ / "optimizer" / job::kNoOptimizerState;
  run(spec, 1, finish_after(2, spec));
  const fs::path state = dir_ / "optimizer" / spec.key.optimizer_state_name() / "state.json";
  EXPECT_LT(fs::last_write_time(spec.report_path), fs::last_write_time(state));
}

TEST_F(WholeJob, TheOptimizerStateOfAnotherTrainingIsNotUsed) {
  using Spec = job::JobSpec;
  EXPECT_EQ(optimizer_lost_after("same", [](Spec&, Spec&) {}), "");
  EXPECT_EQ(optimizer_lost_after("project", [](Spec&, Spec& second) { second.key.project = "q"; }),
            "its project differs");
  EXPECT_EQ(optimizer_lost_after("run", [](Spec&, Spec& second) { second.key.run = "0002"; }),
            "its run differs");
  EXPECT_EQ(
      optimizer_lost_after("facility", [](Spec&, Spec& second) { second.key.facility = "brno"; }),
      "its facility differs");
  EXPECT_EQ(optimizer_lost_after("optimizer",
                                 [](Spec& first, Spec&) {
                                   first.training.optimizer = job::OptimizerKind::kSgd;
                                   first.training.momentum = 0.9;
                                 }),
            "its optimizer differs");
  EXPECT_EQ(optimizer_lost_after("momentum",
                                 [](Spec& first, Spec& second) {
                                   first.training.optimizer = job::OptimizerKind::kSgd;
                                   first.training.momentum = 0;
                                   second.training.optimizer = job::OptimizerKind::kSgd;
                                   second.training.momentum = 0.9;
                                 }),
            "its optimizer differs");
}

// A report with a longer reason is not valid, and the training would be lost.
TEST_F(WholeJob, TheReasonForALostOptimizerStateFitsIntoTheReport) {
  const std::string part(200, 'x');
  const std::string reason = optimizer_lost_after("long", [&](job::JobSpec&, job::JobSpec& second) {
    second.optimizer_path = dir_ / part / part / part / "state";
  });
  EXPECT_TRUE(reason.starts_with("cannot open ")) << reason;
  EXPECT_LE(reason.size(), job::kMaxReasonBytes);
}

TEST_F(WholeJob, TheOptimizerStateOfOtherGroupsIsNotUsed) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  using Spec = job::JobSpec;
  const auto use_outer = [](Spec& spec, job::OuterOptimizer kind) {
    set_groups(spec, 4);
    spec.training.groups.outer.kind = kind;
  };
  EXPECT_EQ(optimizer_lost_after("groups", [](Spec& first, Spec&) { set_groups(first, 4); }),
            "its groups differs");
  EXPECT_EQ(optimizer_lost_after("outer",
                                 [&](Spec& first, Spec& second) {
                                   use_outer(first, job::OuterOptimizer::kAdam);
                                   use_outer(second, job::OuterOptimizer::kNesterov);
                                 }),
            "its outer differs");
}

// The state that the job began with may be lost since.
TEST_F(WholeJob, AResumedJobContinuesWithTheMomentsOfItsCheckpoint) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  const auto spec_of = [&](const std::string& name, int round, const std::string& given,
                           int attempt = 1) {
    job::JobSpec spec = resumable_job(name, {data}, attempt);
    spec.key.round = round;
    spec.training.keep_optimizer = true;
    spec.optimizer_path = dir_ / "optimizer" / given;
    return spec;
  };
  const std::string none(job::kNoOptimizerState);
  const job::JobSpec before = spec_of("before", 1, none);
  run(before);
  const std::string kept = before.key.optimizer_state_name();
  const std::string whole = run(spec_of("whole", 2, kept)).report.update_sha256;
  for (const std::string& given : {kept, none}) {
    const job::JobSpec first = spec_of("stopped-" + given, 2, kept);
    run(first, 1, finish_after(2, first));
    const JobOutcome resumed = run(spec_of("stopped-" + given, 2, given, 2));
    EXPECT_EQ(resumed.losses.size(), 2u) << given;
    EXPECT_EQ(resumed.report.update_sha256, whole) << given;
  }
}

// The thread that hashes the data has opened a pipe, which stays empty until the report exists or 5
// seconds have passed. The training opens the shard that replaces the pipe.
TEST_F(WholeJob, AnEarlyFinishDoesNotWaitForTheHashOfTheData) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20), pipe = dir_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const job::JobSpec spec = job("hashed", {pipe});
  std::atomic<int> writer{-1};
  std::jthread closer([&] {
    for (int i = 0; i < 500 && !fs::exists(spec.report_path); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::close(writer);
  });
  const JobOutcome outcome = run(spec, 1, [&] {
    if (writer < 0) {
      writer = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);  // waits for the reader
      fs::rename(data, pipe);
    }
    return num_lines(spec.metrics_path) < 2 ? StopRequest::kNone : StopRequest::kFinish;
  });
  EXPECT_EQ(outcome.report.steps, 2);
  EXPECT_EQ(outcome.report.data_sha256, "");
}

TEST_F(WholeJob, AStoppedEvaluationHasNoReport) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec spec = job("evaluated", {data});
  spec.validation = {{"it", data}};
  spec.on_stop = job::OnStop::kCheckpoint;
  spec.training.steps = 0;
  EXPECT_EQ(test::kind_of([&] { run(spec, 1, [] { return StopRequest::kFinish; }); }),
            ErrorKind::kCancelled);
  EXPECT_FALSE(fs::exists(spec.report_path));
}

// The second rank withdraws its request, which ends its wait of 30 seconds for the signal.
TEST_F(WholeJob, ACheckCountsTheRanksThatGotTheSignal) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  job::JobSpec spec = job("check", {write_tokens("t.tokens", 8, 2, 20)});
  spec.base_model_path = dir_ / "random";
  int signalled = -1;  // rank 0 reports
  test::run_ranks(2, [&](comm::Group& world) {
    int calls = 0;
    const auto stop = [&] {
      return world.rank() == 0 || ++calls == 1 ? StopRequest::kFinish : StopRequest::kNone;
    };
    const JobContext context{world, at::kCPU, 2, "test", stop};
    check_job(spec, context, dir_ / "base", dir_ / "send-the-signal",
              [&](const job::CheckReport& report) { signalled = report.signalled_ranks; });
  });
  EXPECT_EQ(signalled, 1);
}

// The check times five sums in a row.
TEST_F(WholeJob, ACheckReportsTheSecondsOfOneAllReduce) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  job::JobSpec spec = job("check", {write_tokens("t.tokens", 8, 2, 20)});
  spec.base_model_path = dir_ / "random";
  double of_one = 0, of_all = 0;  // seconds on rank 0
  test::run_ranks(2, [&](comm::Group& world) {
    using Clock = std::chrono::steady_clock;
    const JobContext context{world, at::kCPU, 2, "test", [] { return StopRequest::kFinish; }};
    Clock::time_point start;
    check_job(spec, context, dir_ / "base", dir_ / "send-the-signal",
              [&](const job::CheckReport& report) {
                if (report.part == "all-reduce") start = Clock::now();
                if (report.part != "signal") return;
                of_one = report.all_reduce_seconds;
                of_all = std::chrono::duration<double>(Clock::now() - start).count();
              });
  });
  EXPECT_GT(of_one, 0);
  EXPECT_LE(5 * of_one, of_all);
}

// The first step warms up.
TEST_F(WholeJob, ACheckReportsTheMeanOfTheLaterSteps) {
  job::JobSpec spec = job("check", {write_tokens("t.tokens", 8, 2, 20)});
  spec.base_model_path = dir_ / "random";
  const auto group = comm::make_single_rank();
  const JobContext context{*group, at::kCPU, 1, "test", [] { return StopRequest::kFinish; }};
  job::CheckReport found;
  check_job(spec, context, dir_ / "base", dir_ / "send-the-signal",
            [&](const job::CheckReport& report) { found = report; });
  std::vector<Json> steps;
  std::ifstream metrics(spec.metrics_path);
  for (std::string line; std::getline(metrics, line);)
    steps.push_back(parse_json(line, "metrics.jsonl"));
  ASSERT_EQ(steps.size(), 4u);
  const auto mean_of = [&](const char* key) {
    return (steps[1][key].get<double>() + steps[2][key].get<double>() +
            steps[3][key].get<double>()) /
           3;
  };
  EXPECT_NEAR(found.step_seconds / mean_of("seconds"), 1, 1e-9);
  EXPECT_NEAR(found.step_tokens / mean_of("tokens"), 1, 1e-9);
  EXPECT_GT(found.peak_memory_bytes, 0);
}

// The random model is as large as the job's model.
TEST_F(WholeJob, ACheckRemovesItsModel) {
  job::JobSpec spec = job("check", {write_tokens("t.tokens", 8, 2, 20)});
  spec.base_model_path = dir_ / "random";
  const auto group = comm::make_single_rank();
  const JobContext context{*group, at::kCPU, 1, "test", [] { return StopRequest::kFinish; }};
  bool was_there = false, is_complete = false;
  check_job(spec, context, dir_ / "base", dir_ / "send-the-signal",
            [&](const job::CheckReport& report) {
              was_there = was_there || fs::exists(spec.base_model_path);
              is_complete = report.complete;
            });
  EXPECT_TRUE(was_there);
  EXPECT_TRUE(is_complete);
  EXPECT_FALSE(fs::exists(spec.base_model_path));
}

// A group of one rank whose sums are too large.
class WrongSums final : public comm::Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "wrong"; }
  void all_reduce(at::Tensor tensor) override { tensor.mul_(3); }
  comm::Pending start_all_gather(at::Tensor all_WS, at::Tensor mine_S) override {
    all_WS.copy_(mine_S);
    return {};
  }
  comm::Pending start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) override {
    mine_S.copy_(all_WS);
    return {};
  }
  comm::Pending start_send(at::Tensor, int) override { return {}; }
  comm::Pending start_receive(at::Tensor, int) override { return {}; }
  void barrier() override {}
  void wait_for_first() override {}
  std::unique_ptr<comm::Group> split(const std::vector<int>&, const std::string&) override {
    return comm::make_single_rank();
  }
};

TEST_F(WholeJob, ACheckReportsThePartThatFails) {
  job::JobSpec spec = job("check", {write_tokens("t.tokens", 8, 2, 20)});
  spec.base_model_path = dir_ / "random";
  const auto failed_part = [&](comm::Group& group, const fs::path& config) {
    const JobContext context{group, at::kCPU, 1, "test", [] { return StopRequest::kFinish; }};
    job::CheckReport last;
    const Error error = test::error_of([&] {
      check_job(spec, context, config, dir_ / "send-the-signal",
                [&](const job::CheckReport& report) { last = report; });
    });
    EXPECT_EQ(last.problem, error.what());
    EXPECT_FALSE(last.complete);
    return last.part;
  };
  const auto alone = comm::make_single_rank();
  WrongSums wrong;
  EXPECT_EQ(failed_part(wrong, dir_ / "base"), "all-reduce");
  EXPECT_EQ(failed_part(*alone, dir_ / "absent"), "model");
}

TEST_F(WholeJob, ACheckNamesTheProblemOfADevice) {
  const job::JobSpec spec = job("device", {write_tokens("t.tokens", 8, 2, 20)});
  const job::RankCheck check = check_rank(spec, {}, "tpu", "test");
  EXPECT_NE(check.problem.find("--device is 'tpu'"), std::string::npos) << check.problem;
  EXPECT_EQ(check.data.size(), 1u);
}

TEST_F(WholeJob, ACheckReadsTheShardsOfTrainingAndValidation) {
  job::JobSpec spec = job("shards", {write_tokens("t.tokens", 8, 2, 20)});
  spec.validation = {{"it", (dir_ / "absent.tokens").string()}};
  const std::vector<job::CheckedShard> data = check_rank(spec, {}, "cpu", "test").data;
  ASSERT_EQ(data.size(), 2u);
  EXPECT_EQ(data[0].path, spec.validation[0].path);
  EXPECT_NE(data[0].problem, "");
  EXPECT_EQ(data[1].sequences, 8);
  EXPECT_EQ(data[1].sequence_length, 20);
  EXPECT_EQ(data[1].problem, "");
}

// Both ranks train on the same sequence. Without dropout, or with the same dropout, their mean
// gradient is one rank's gradient.
TEST_F(WholeJob, EachRankHasItsOwnDropout) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const std::string data = write_tokens("t.tokens", 1, 20, 20);
  const auto last_loss = [&](int ranks, double dropout) {
    job::JobSpec spec = job(std::to_string(ranks) + (dropout > 0 ? "-dropped" : "-whole"), {data});
    spec.training.micro_batch_size = 1;
    spec.training.batch_size = ranks;
    spec.training.lora.rank = 2;
    spec.training.lora.dropout = dropout;
    return run(spec, ranks).losses.back();
  };
  EXPECT_NEAR(last_loss(2, 0) / last_loss(1, 0), 1, 1e-6);
  EXPECT_GT(std::abs(last_loss(2, 0.5) / last_loss(1, 0.5) - 1), 1e-4);
}

TEST_F(WholeJob, TheLossOfGroupsIsWeightedByTheirTokens) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const std::string one = write_tokens("a.tokens", 8, 2, 6),
                    other = write_tokens("bb.tokens", 8, 20, 40);
  job::JobSpec spec = job("groups", {one, other});
  set_groups(spec, 2);
  const Json together = run(spec, 2).steps.at(0);
  const Json a = run(job("a", {one})).steps.at(0), b = run(job("b", {other})).steps.at(0);
  const double tokens_a = a["tokens"], tokens_b = b["tokens"];
  const double loss_a = a["loss"], loss_b = b["loss"];
  ASSERT_GT(tokens_b, 2 * tokens_a);
  const double expected = (loss_a * tokens_a + loss_b * tokens_b) / (tokens_a + tokens_b);
  EXPECT_GT(std::abs(expected - (loss_a + loss_b) / 2), 1e-6);
  EXPECT_NEAR(together["loss"].get<double>(), expected, 1e-9);
  const double norm_a = a["grad_norm"], norm_b = b["grad_norm"];
  EXPECT_GT(std::abs(norm_a - norm_b), 1e-3);
  EXPECT_NEAR(together["grad_norm"].get<double>(), (norm_a + norm_b) / 2, 1e-5);
}

// The job stops between two exchanges, when the groups have seen different numbers of tokens.
TEST_F(WholeJob, AResumedGroupContinuesWithItsOwnCounts) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const std::vector<std::string> data = {write_tokens("a.tokens", 8, 2, 6),
                                         write_tokens("bb.tokens", 8, 20, 40)};
  const auto spec_of = [&](const std::string& name, int attempt) {
    job::JobSpec spec = job(name, data, attempt);
    set_groups(spec, 4);
    spec.on_stop = job::OnStop::kCheckpoint;
    return spec;
  };
  const job::JobSpec first = spec_of("stopped", 1);
  const JobOutcome stopped = run(first, 2, finish_after(3, first));
  ASSERT_TRUE(stopped.report.stopped_early);
  ASSERT_EQ(stopped.report.steps, 3);
  const JobOutcome resumed = run(spec_of("stopped", 2), 2);
  const JobOutcome whole = run(spec_of("whole", 1), 2);
  EXPECT_EQ(resumed.report.steps, 4);
  EXPECT_EQ(resumed.losses.size(), 1u);
  EXPECT_EQ(resumed.report.tokens, whole.report.tokens);
  EXPECT_EQ(resumed.report.update_sha256, whole.report.update_sha256);
  EXPECT_EQ(resumed.report.world_size, 2);
  EXPECT_EQ(resumed.report.nodes, 2) << "each rank is the first one of its machine";
  EXPECT_FALSE(fs::exists(first.state_path)) << "a complete job leaves no checkpoint";
}

// A resumed job may be asked to finish before its first own step.
TEST_F(WholeJob, AResumedJobExchangesTheStepsBeforeItsCheckpoint) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const std::vector<std::string> data = {write_tokens("a.tokens", 8, 2, 6),
                                         write_tokens("bb.tokens", 8, 20, 40)};
  job::JobSpec first = job("stopped", data), second = job("stopped", data, 2),
               whole = job("whole", data);
  for (job::JobSpec* spec : {&first, &second, &whole}) set_groups(*spec, 4);
  first.on_stop = job::OnStop::kCheckpoint;
  run(first, 2, finish_after(3, first));
  whole.training.steps = 3;
  const JobOutcome resumed = run(second, 2, [] { return StopRequest::kFinish; });
  EXPECT_EQ(resumed.report.steps, 3);
  EXPECT_TRUE(resumed.losses.empty());
  EXPECT_EQ(resumed.report.update_sha256, run(whole, 2).report.update_sha256);
}

TEST_F(WholeJob, TheLastStepsOfGroupsAreExchanged) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const std::vector<std::string> data = {write_tokens("a.tokens", 8, 2, 6),
                                         write_tokens("bb.tokens", 8, 20, 40)};
  const auto update_of_four_steps = [&](const std::string& name, int64_t interval, int64_t steps) {
    job::JobSpec spec = job(name, data);
    set_groups(spec, interval);
    spec.training.steps = steps;
    if (steps == 4) spec.on_stop = job::OnStop::kCheckpoint;  // a complete job does not stop
    const job::JobReport report = run(spec, 2, finish_after(4, spec)).report;
    EXPECT_EQ(report.steps, 4) << name;
    return report.update_sha256;
  };
  const std::string in_time = update_of_four_steps("in-time", 4, 4);
  EXPECT_EQ(update_of_four_steps("late", 8, 4), in_time);
  EXPECT_EQ(update_of_four_steps("stopped", 8, 100), in_time);
}

TEST_F(WholeJob, ADeltaIsTheTrainedModelMinusItsInput) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  for (const job::UpdateKind kind : {job::UpdateKind::kWeights, job::UpdateKind::kDelta}) {
    job::JobSpec spec = job(std::string(to_string(kind)), {data});
    spec.update_kind = kind;
    spec.update_dtype = job::FloatType::kFloat32;
    spec.training.freeze = {"model.norm.weight"};
    run(spec);
  }
  const checkpoint::ModelFolder base(dir_ / "base"), weights(dir_ / "weights/a1/update"),
      delta(dir_ / "delta/a1/update");
  const auto values = [](const checkpoint::ModelFolder& model, const std::string& name) {
    std::vector<float> result(static_cast<size_t>(model.spec(name).num_elements()));
    checkpoint::to_float(model.data(name), checkpoint::Dtype::kF32, result);
    return result;
  };
  for (const checkpoint::TensorSpec& tensor : base.tensors()) {
    const auto input = values(base, tensor.name), trained = values(weights, tensor.name);
    std::vector<float> expected = trained;
    for (size_t i = 0; i < expected.size(); ++i) expected[i] -= input[i];
    EXPECT_EQ(values(delta, tensor.name), expected) << tensor.name;
    EXPECT_EQ(trained == input, tensor.name == "model.norm.weight") << tensor.name;
  }
}

TEST_F(WholeJob, RejectsAnotherOrADamagedInputModel) {
  job::JobSpec spec = job("other", {write_tokens("t.tokens", 8, 2, 20)});
  spec.base_model_sha256 = std::string(64, 'a');
  EXPECT_EQ(test::kind_of([&] { run(spec); }), ErrorKind::kRejected);
  spec = job("damaged", spec.train_paths);
  change_last_byte(dir_ / "base/model.safetensors");
  EXPECT_EQ(test::kind_of([&] { run(spec); }), ErrorKind::kRejected);
}

// A job that was killed while it wrote its update, and again between its update and its report.
TEST_F(WholeJob, AnUpdateWithoutAReportIsReplaced) {
  const job::JobSpec spec = job("killed", {write_tokens("t.tokens", 8, 2, 20)});
  for (const std::string& folder : {spec.update_path, spec.update_path + ".tmp"}) {
    fs::create_directories(folder);
    std::ofstream(fs::path(folder) / "old") << "1";
  }
  EXPECT_EQ(run(spec).report.steps, 4);
  EXPECT_FALSE(fs::exists(fs::path(spec.update_path) / "old"));
  checkpoint::verify_folder(spec.update_path, checkpoint::read_manifest(spec.update_path));
}

// The report's folder would be in a file.
TEST_F(WholeJob, AJobThatCannotWriteItsReportKeepsItsCheckpoint) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec spec = job("unreported", {data});
  spec.training.checkpoint_interval = 3;
  const std::string report_path = std::exchange(spec.report_path, data + "/report.json");
  EXPECT_THROW(run(spec), Error);
  EXPECT_TRUE(fs::exists(spec.update_path)) << "the training was complete";
  EXPECT_TRUE(fs::exists(fs::path(spec.state_path) / "step-00000003"));
  spec.report_path = report_path;
  EXPECT_EQ(run(spec).report.steps, 4);
  EXPECT_FALSE(fs::exists(spec.state_path));
}

TEST_F(WholeJob, AnAbortEndsTheWritingOfTheUpdate) {
  const job::JobSpec spec = job("aborted", {write_tokens("t.tokens", 8, 2, 20)});
  const auto stop = [&] {
    return fs::exists(spec.update_path + ".tmp") ? StopRequest::kAbort : StopRequest::kNone;
  };
  EXPECT_EQ(test::kind_of([&] { run(spec, 1, stop); }), ErrorKind::kCancelled);
  EXPECT_EQ(num_lines(spec.metrics_path), 4u) << "the training was complete";
  EXPECT_FALSE(fs::exists(spec.update_path));
  EXPECT_FALSE(fs::exists(spec.report_path));
}

// The other ranks wait for the first one while it writes. The update's folder would be in a file.
TEST_F(WholeJob, AFailedWritingOfTheUpdateEndsAllRanks) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec spec = job("unwritten", {data});
  spec.update_path = data + "/update";
  std::vector<test::Thrown> thrown(2);
  test::run_ranks(2, [&](comm::Group& world) {
    const JobContext context{world, at::kCPU, 2, "test", [] { return StopRequest::kNone; }};
    Job whole(spec, context);
    thrown[static_cast<size_t>(world.rank())] = test::thrown_by([&] { whole.run(); });
  });
  EXPECT_EQ(thrown[0].kind, ErrorKind::kIo) << thrown[0].message;
  EXPECT_EQ(thrown[1].kind, ErrorKind::kFailed);
  EXPECT_NE(thrown[1].message.find("rank 0 stopped the job"), std::string::npos)
      << thrown[1].message;
}

// A rank's share of the free memory is then some bytes or kilobytes.
TEST_F(WholeJob, SharesTheMemoryWithTheRanksOfItsMachine) {
  const job::JobSpec spec = job("shared", {write_tokens("t.tokens", 8, 2, 20)});
  const auto alone = comm::make_single_rank();
  const JobContext context{*alone, at::kCPU, 1 << 24, "test", [] { return StopRequest::kNone; }};
  const std::string message =
      test::message_of(ErrorKind::kFailed, [&] { Job(spec, context).run(); });
  EXPECT_NE(message.find("out of memory before loading"), std::string::npos) << message;
  EXPECT_EQ(run(spec).report.steps, 4);
}

TEST_F(WholeJob, DoesNotTakeTheReportOfAnotherJobForItsOwn) {
  job::JobSpec spec = job("stale", {write_tokens("t.tokens", 8, 2, 20)});
  run(spec);
  spec.key.nonce = std::string(32, 'b');
  EXPECT_EQ(test::kind_of([&] { run(spec); }), ErrorKind::kRejected);
}

// Only the first attempt of a round gets a packed input model.
TEST_F(WholeJob, ContinuesUnderSettingsThatDoNotChangeTheWeights) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec first = job("repacked", {data});
  first.on_stop = job::OnStop::kCheckpoint;
  // The model is there already, so nothing is unpacked.
  first.base_model_packed =
      job::PackedModel{"/p", std::string(64, 'a'), "/r", std::string(64, 'b'), "/f"};
  run(first, 1, finish_after(2, first));
  job::JobSpec second = job("repacked", {data}, 2);
  second.training.recompute = job::Recompute::kFull;
  second.training.offload = job::Offload::kOptimizer;
  second.training.checkpoint_interval = 7;
  second.training.keep_checkpoints = 5;
  second.training.deterministic = true;
  second.training.validation_batch_size = 3;
  second.training.sharding = job::Sharding::kHybrid;
  second.training.shard_group_size = 1;
  second.training.attention = job::AttentionKernel::kMath;
  second.base_model_path = dir_ / "moved";  // the same model
  fs::copy(dir_ / "base", dir_ / "moved");
  EXPECT_EQ(run(second).losses.size(), 2u);
}

// The input adapter may have moved between two attempts.
TEST_F(WholeJob, ContinuesFromACheckpointOfTheSameAdapterOnly) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  const auto make_adapter = [&](const std::string& name, int64_t steps) -> fs::path {
    job::JobSpec spec = job(name, {data});
    spec.update_kind = job::UpdateKind::kWeights;
    spec.update_dtype = job::FloatType::kFloat32;
    spec.training.lora.rank = 2;
    spec.training.steps = steps;
    run(spec);
    return spec.update_path;
  };
  const auto steps_after = [&](const std::string& name, const fs::path& begun_with,
                               const fs::path& continued_with) {
    job::JobSpec first = resumable_job(name, {data}), second = resumable_job(name, {data}, 2);
    const auto set_adapter = [](job::JobSpec& spec, const fs::path& adapter) {
      spec.training.lora.rank = 2;
      spec.adapter_path = adapter;
      spec.adapter_sha256 = checkpoint::read_manifest(adapter).root_sha256();
    };
    set_adapter(first, begun_with);
    set_adapter(second, continued_with);
    run(first, 1, finish_after(2, first));
    return run(second).losses.size();
  };
  const fs::path one = make_adapter("one", 1), other = make_adapter("other", 2);
  fs::copy(one, dir_ / "moved");
  EXPECT_EQ(steps_after("moved-adapter", one, dir_ / "moved"), 2u);
  EXPECT_EQ(steps_after("other-adapter", one, other), 4u);
}

// Earlier releases stored no accuracies.
TEST_F(WholeJob, ContinuesFromACheckpointWithoutAccuracies) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  job::JobSpec first = resumable_job("old", {data}), second = resumable_job("old", {data}, 2);
  for (job::JobSpec* spec : {&first, &second}) spec->validation = {{"it", data}};
  run(first, 1, finish_after(2, first));
  const fs::path file = fs::path(second.state_path) / "step-00000002/state.json";
  Json state = parse_json(read_file(file, 1 << 20), file.string());
  ASSERT_EQ(state.erase("accuracies") + state.erase("accuracy_before"), 2u);
  write_file_atomic(file, state.dump());
  const JobOutcome outcome = run(second);
  EXPECT_EQ(outcome.losses.size(), 2u);
  EXPECT_GT(outcome.report.validation.at(0).nll_before, 0);
  EXPECT_EQ(outcome.report.validation.at(0).accuracy_before, 0);
}

TEST_F(WholeJob, ContinuesFromItsOwnIntactCheckpointOnly) {
  const std::string data = write_tokens("t.tokens", 8, 2, 20);
  const auto steps_after = [&](const std::string& name, const auto& change) {
    job::JobSpec first = job(name, {data});
    first.on_stop = job::OnStop::kCheckpoint;
    run(first, 1, finish_after(2, first));
    job::JobSpec second = job(name, {data}, 2);
    change(second);
    return run(second).losses.size();
  };
  const auto lower_version = [](const job::JobSpec& spec) {
    const fs::path file = fs::path(spec.state_path) / "step-00000002/state.json";
    Json state = parse_json(read_file(file, 1 << 20), file.string());
    state["version"] = state["version"].get<int>() - 1;
    write_file_atomic(file, state.dump());
  };
  const auto other_model = [&](job::JobSpec& spec) {
    write_model("other-base", 8);
    spec.base_model_path = dir_ / "other-base";
    spec.base_model_sha256 = checkpoint::read_manifest(dir_ / "other-base").root_sha256();
  };
  EXPECT_EQ(steps_after("same", [](job::JobSpec&) {}), 2u);
  EXPECT_EQ(steps_after("of-another-model", other_model), 4u);
  EXPECT_EQ(steps_after("other", [](job::JobSpec& spec) { spec.training.learning_rate = 2e-2; }),
            4u);
  EXPECT_EQ(steps_after("of-an-earlier-release", lower_version), 4u);
  EXPECT_EQ(steps_after("damaged",
                        [](job::JobSpec& spec) {
                          for (const auto& entry :
                               fs::directory_iterator(fs::path(spec.state_path) / "step-00000002"))
                            if (entry.path().filename().string().find("part-") == 0)
                              change_last_byte(entry.path());
                        }),
            4u);
}

}  // namespace
}  // namespace xffl::train
