// From text at two real facilities to a federation: `xffl prepare` by a Slurm job behind SSH,
// killed after the submission and repeated, while an `xffl run` waits for the shards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/config/load.h"
#include "xffl/history/store.h"
#include "xffl/tokens/prepared.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kBin = XFFL_BINARY_DIR "/bin";

class TestbedPrepare : public testing::Test {
 protected:
  void SetUp() override {
    NEED_TESTBED(testbed_);
    for (const char* name : {"alba", "brno"}) write_text(name);
    write_model();
    write_config();
    write_file_atomic(path() / "known_hosts",
                      read_file(testbed_.facility("alba").known_hosts, 1 << 20));
  }

  fs::path path() const { return dir_.path(); }
  fs::path text_here(const std::string& name) const {
    return testbed_.facility(name).folder / "scratch/text/part.txt";
  }
  void write_text(const std::string& name) const {
    fs::create_directories(text_here(name).parent_path());
    std::ofstream file(text_here(name));
    for (int i = 0; i < 400; ++i) file << name << " writes sentence " << i * 7919 % 997 << ".\n\n";
    file.close();
    fs::permissions(text_here(name), fs::perms::owner_all | fs::perms::others_read);
  }
  void write_model() const {
    fs::create_directories(path() / "tokenizer");
    must({kBin + std::string("/xffl-tokenize"), "train", "--input", text_here("alba").string(),
          text_here("brno").string(), "--output", (path() / "tokenizer").string(), "--vocab-size",
          "300"});
    checkpoint::LlamaConfig config;
    config.vocab_size = 300;
    config.hidden_size = 32;
    config.intermediate_size = 64;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = 4;
    config.head_dim = 8;
    config.max_position_embeddings = 64;
    write_file_atomic(path() / "config.json", checkpoint::format_llama_config(config));
    must({kBin + std::string("/xffl-train"), "init", "--config", (path() / "config.json").string(),
          "--output", (path() / "model").string()});
    for (const auto& file : fs::directory_iterator(path() / "tokenizer"))
      fs::copy(file.path(), path() / "model");
  }
  void write_config() const {
    std::string yaml =
        "project: lab\nmodel: model\nrounds: 1\ntraining: {steps_per_round: 2, batch_size: 2, "
        "micro_batch_size: 1, learning_rate: 0.001, precision: fp32}\n"
        "policy: {poll_interval: 500ms}\nfacilities:\n";
    for (const char* name : {"alba", "brno"})
      yaml += "  " + std::string(name) + ":\n" + test::placement(testbed_.facility(name)).yaml +
              "    trainer: {program: " + kBin +
              "/xffl-train}\n    environment: [export "
              "OMP_NUM_THREADS=1]\n    data: {text: " +
              testbed_.facility(name).scratch +
              "/text/*.txt, sequence_length: 32, validation_fraction: 0.1}\n";
    write_file_atomic(path() / "xffl.yaml", yaml);
  }
  static void must(const std::vector<std::string>& argv) {
    const ProcessResult done = run_process({.argv = argv, .timeout = std::chrono::seconds(120)});
    ASSERT_EQ(done.exit_code, 0) << done.err << done.out;
  }
  std::vector<std::string> command(const std::string& name, const std::string& facility) const {
    std::vector<std::string> argv = {kBin + std::string("/xffl"), name, "-p", path().string()};
    if (!facility.empty()) argv.insert(argv.begin() + 2, facility);
    return argv;
  }
  ProcessResult xffl(const std::string& name, const std::string& facility = "") const {
    return run_process({.argv = command(name, facility), .timeout = std::chrono::seconds(240)});
  }
  // The prepared folder of a facility as this machine sees it.
  fs::path prepared(const std::string& name) const {
    const test::Facility& facility = testbed_.facility(name);
    const std::string there =
        config::load_experiment(path()).facility(FacilityName(name)).prepared.str();
    EXPECT_TRUE(there.starts_with(facility.scratch)) << there;
    return facility.folder / "scratch" / fs::path(there).lexically_relative(facility.scratch);
  }

  test::Testbed testbed_{{"alba", "brno"}};
  test::TempDir dir_;
};

TEST_F(TestbedPrepare, TextBehindSshIsTokenizedOnceAndTrainedOn) {
  const pid_t run = start_detached({.argv = command("run", "")}, path() / "run.log");
  EXPECT_TRUE(test::await([&] {
    const std::string status = xffl("status").out;
    return status.find("not tokenized yet: xffl prepare alba") != std::string::npos &&
           status.find("not tokenized yet: xffl prepare brno") != std::string::npos;
  })) << xffl("status").out;
  const pid_t first = start_detached({.argv = command("prepare", "alba")}, path() / "first.log");
  EXPECT_TRUE(test::await([&] { return fs::exists(prepared("alba") / "job1/job.id"); }))
      << read_file(path() / "first.log", 1 << 20);
  ::kill(first, SIGKILL);
  wait_for_exit(first);
  for (const char* name : {"alba", "brno"}) {
    const ProcessResult done = xffl("prepare", name);
    ASSERT_EQ(done.exit_code, 0) << done.err << done.out;
    EXPECT_FALSE(fs::exists(prepared(name) / "job2"));
    must({kBin + std::string("/xffl-tokenize"), "encode", "--tokenizer",
          (path() / "model").string(), "--input", text_here(name).string(), "--sequence-length",
          "32", "--output", (path() / "t").string(), "--validation-output", (path() / "v").string(),
          "--validation-fraction", "0.1"});
    EXPECT_EQ(read_file(prepared(name) / "train.tokens", 1 << 24),
              read_file(path() / "t", 1 << 24));
    EXPECT_EQ(read_file(prepared(name) / "validation.tokens", 1 << 24),
              read_file(path() / "v", 1 << 24));
  }
  if (!test::await([&] { return !process_start_ticks(run); })) ::kill(run, SIGKILL);
  EXPECT_EQ(wait_for_exit(run), 0) << read_file(path() / "run.log", 1 << 20);
  EXPECT_THAT(xffl("status").out, HasSubstr("1 of 1 rounds published"));
  for (const history::StoredEvent& event : history::read_events(path() / "runs/0001/journal.db"))
    EXPECT_NE(event.kind, "attempt_failed") << event.payload;
}

}  // namespace
}  // namespace xffl
