// `xffl doctor --job` at a real Slurm facility of two nodes, behind SSH, with the real trainer: one
// CPU rank on each node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/tokens/token_shard.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPrograms = XFFL_BINARY_DIR "/bin";

class TestbedCheckJob : public testing::Test {
 protected:
  void SetUp() override {
    NEED_TESTBED(testbed_);
    checkpoint::LlamaConfig config;
    config.vocab_size = 64;
    config.hidden_size = 32;
    config.intermediate_size = 64;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = 4;
    config.head_dim = 8;
    config.max_position_embeddings = 32;
    write_file_atomic(path() / "config.json", checkpoint::format_llama_config(config));
    const ProcessResult made = run_process(
        {.argv = {kPrograms + std::string("/xffl-train"), "init", "--config",
                  (path() / "config.json").string(), "--output", (path() / "model").string()}});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    write_file_atomic(path() / "known_hosts", read_file(brno().known_hosts, 1 << 20));
    write_shard(brno().folder / "scratch/data.tokens");
  }

  fs::path path() const { return dir_.path(); }
  const test::Facility& brno() const { return testbed_.facility("brno"); }

  static void write_shard(const fs::path& file) {
    tokens::TokenShardWriter writer(file, 64, 16, true);
    std::vector<int32_t> ids(16 * 32);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 60);
    writer.add_document(ids);
    writer.finish();
    fs::permissions(file, fs::perms::owner_all | fs::perms::others_read);
  }
  ProcessResult check(const std::string& data, const std::string& more = "",
                      const std::string& slurm = "nodes: 2, time: 5m, warning: 1m") const {
    write_file_atomic(path() / "xffl.yaml",
                      "project: lab\nmodel: model\nrounds: 1\ntraining: {steps_per_round: 40, "
                      "batch_size: 4, micro_batch_size: 1, precision: fp32}\nfacilities:\n"
                      "  brno:\n" +
                          test::placement(brno(), more, slurm).yaml +
                          "    trainer: {program: " + kPrograms +
                          "/xffl-train}\n    environment: [export OMP_NUM_THREADS=1]\n"
                          "    data: {train: [" +
                          data + "]}\n");
    return run_process({.argv = {kPrograms + std::string("/xffl"), "doctor", "--job", "brno",
                                 "--yes", "-p", path().string()},
                        .timeout = std::chrono::seconds(240)});
  }

  test::Testbed testbed_{{"brno"}};
  test::TempDir dir_;
};

TEST_F(TestbedCheckJob, MeasuresARoundAndNamesANodeWithoutTheData) {
  const ProcessResult good = check(brno().scratch + "/data.tokens");
  ASSERT_EQ(good.exit_code, 0) << good.err << good.out;
  EXPECT_THAT(good.out, HasSubstr("2 of 2 nodes have answered"));
  EXPECT_THAT(good.out, HasSubstr("all-reduce of 2 ranks on 2 nodes"));
  EXPECT_THAT(good.out, HasSubstr("reached 2 of 2 ranks"));
  EXPECT_THAT(good.out, HasSubstr("a round of 40 steps takes"));
  EXPECT_THAT(good.out, Not(HasSubstr("job \n")));
  // An ended job is listed as completing (CG) for a moment.
  EXPECT_TRUE(test::await([&] { return brno().exec_on_login({"squeue", "-h"}).out.empty(); }));

  // Each node has a /tmp of its own.
  const std::string only_on_node_1 = "/tmp/only.tokens";
  write_shard(brno().folder / "tmp/.node1/tmp/only.tokens");
  const ProcessResult bad = check(only_on_node_1);
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_THAT(bad.out, HasSubstr("on brno2 " + only_on_node_1 + " does not exist"));
  EXPECT_THAT(bad.out, Not(HasSubstr("on brno1 " + only_on_node_1)));
  EXPECT_THAT(bad.out, HasSubstr("compute nodes may mount other file systems"));
}

// A stand-in for Apptainer, inside of which Slurm's programs are missing as in a real image.
TEST_F(TestbedCheckJob, TheWarningReachesRanksInAnImage) {
  const std::string scratch = brno().scratch;
  const ProcessResult made = brno().exec_as_user(
      {"sh", "-c",
       R"sh(mkdir "$1/bin" && ln -s /usr/bin/* "$1/bin" && rm "$1"/bin/scancel "$1"/bin/srun &&
printf '#!/bin/sh\nwhile [ "$1" != %s ]; do shift; done\nshift\nPATH=%s exec "$@"\n' "$1/x.sif" "$1/bin" >"$1/apptainer" &&
chmod 755 "$1/apptainer" && : >"$1/x.sif")sh",
       "sh", scratch});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const ProcessResult good =
      check(scratch + "/data.tokens",
            "    image: {file: " + scratch + "/x.sif, program: " + scratch + "/apptainer}\n");
  ASSERT_EQ(good.exit_code, 0) << good.err << good.out;
  EXPECT_THAT(good.out, HasSubstr("2 of 2 nodes have answered"));
  EXPECT_THAT(good.out, HasSubstr("reached 2 of 2 ranks"));
}

TEST_F(TestbedCheckJob, TheQueueForChecksIsUsed) {
  const ProcessResult refused =
      check(brno().scratch + "/data.tokens", "",
            "nodes: 2, time: 5m, warning: 1m, check_partition: for_checks");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("invalid partition"));
  // A training of 2 h would wait for ever in this partition, which takes 1 h.
  const ProcessResult good = check(brno().scratch + "/data.tokens", "",
                                   "nodes: 2, time: 2h, warning: 1m, check_partition: urgent");
  ASSERT_EQ(good.exit_code, 0) << good.err << good.out;
  EXPECT_THAT(good.out, HasSubstr("the walltime of 2 h suffices")) << "a round's walltime";
  const std::string job = good.out.substr(good.out.find("job ") + 4);
  EXPECT_THAT(brno().exec_on_login({"scontrol", "show", "job", job.substr(0, job.find('\n'))}).out,
              HasSubstr("Partition=urgent"));
}

}  // namespace
}  // namespace xffl
