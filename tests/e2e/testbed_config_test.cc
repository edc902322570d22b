// `xffl config` asks the Slurm of real facilities while it asks the user: alba with accounting,
// brno without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/on_terminal.h"
#include "support/testbed.h"
#include "xffl/base/file.h"
#include "xffl/config/load.h"
#include "xffl/submit/slurm.h"

namespace xffl {
namespace {

using testing::HasSubstr;
using testing::Not;

class TestbedConfig : public testing::Test {
 protected:
  std::string project() const { return (dir_ / "project").string(); }
  // The answers up to the question of the log-in.
  std::string until_log_in(const test::Facility& facility,
                           const std::string& precision = "") const {
    return "bi\n\n\n\n\n\n" + precision + "\n" + facility.name + "\nssh\n" + facility.host + "\n" +
           facility.user + "\n" + facility.key.string() + "\n";
  }
  test::OnTerminal config() const { return {{"config", "-p", project()}, 200, 200, {}}; }
  // The sizes of Llama-3.1-8B: 16 bytes for each of 8.03e9 parameters with fp32.
  void write_model() const {
    make_dirs(dir_ / "project/models/small");
    write_file_atomic(dir_ / "project/models/small/config.json",
                      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "hidden_act": "silu"})");
  }
  const submit::SlurmSettings& slurm() {
    experiment_ = config::load_experiment(project());
    return experiment_.facilities.at(0).scheduler.as<submit::SlurmSettings>();
  }

  test::TempDir dir_;
  config::Experiment experiment_;
};

TEST_F(TestbedConfig, SlurmProposesAccountPartitionAndLimits) {
  test::Testbed testbed({"alba"}, {"--dbd", "--gpu-type", "a100"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  write_model();
  test::OnTerminal terminal = config();
  terminal.type(until_log_in(testbed.facility("alba")));
  ASSERT_TRUE(terminal.await_text("Log in now")) << terminal.bytes;
  terminal.type("y\n");
  ASSERT_TRUE(terminal.await_text("type yes to trust")) << terminal.bytes;
  terminal.type("yes\n");
  ASSERT_TRUE(terminal.await_text("Slurm account to charge (")) << terminal.bytes;
  EXPECT_THAT(terminal.bytes,
              HasSubstr("partition main (the default): 2 nodes, 2 a100 GPUs, at most 1h"));
  EXPECT_THAT(terminal.bytes, HasSubstr("partition debug: 1 node, 2 a100 GPUs, at most 5m"));
  EXPECT_THAT(terminal.bytes, HasSubstr("QOS single"));
  EXPECT_THAT(terminal.bytes, Not(HasSubstr("has no answer")));
  terminal.type("\n\nsingle\n\n\n\n\n/scratch/x\n\n/data/*.txt\n\ny\n");
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
  EXPECT_THAT(terminal.bytes,
              HasSubstr("Proposal: 2 nodes: parameters, gradients and optimizer need 119.7 GB, "
                        "sharded over 4 GPUs of 40.0 GB; 3 nodes would hold them, but a job has "
                        "at most 2 here"));
  EXPECT_EQ(slurm().account, "proj");
  EXPECT_EQ(slurm().partition, "main");
  EXPECT_EQ(slurm().qos, "single");
  EXPECT_EQ(slurm().nodes, 2);
  EXPECT_EQ(slurm().gpus_per_node, 2);
  EXPECT_EQ(slurm().time, std::chrono::hours(1));
  EXPECT_EQ(experiment_.facilities.at(0).training.sharding, job::Sharding::kFull);

  test::OnTerminal again({"config", "-p", project(), "--force"}, 200, 200, {});
  again.type(until_log_in(testbed.facility("alba"), "bf16") + "y\n");  // the key is pinned already
  ASSERT_TRUE(again.await_text("Slurm account to charge (")) << again.bytes;
  EXPECT_THAT(again.bytes, HasSubstr("QOS short: at most 10m, nodes of a job: 1"));
  again.type("\n\nshort\n\n\n\n\n/scratch/x\n\n/data/*.txt\n\ny\n");
  EXPECT_EQ(again.finish(), 0) << again.bytes;
  EXPECT_THAT(again.bytes, HasSubstr("need 134.6 GB")) << "with float32 masters: 18 bytes each";
  EXPECT_THAT(again.bytes, HasSubstr("a job has at most 1 here"));
  EXPECT_EQ(slurm().nodes, 1);
  EXPECT_EQ(slurm().time, std::chrono::minutes(10));
}

TEST_F(TestbedConfig, WithoutAnAnswerTheQuestionsGoOn) {
  test::Testbed testbed({"brno"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  const test::Facility& brno = testbed.facility("brno");
  {
    test::OnTerminal terminal = config();
    terminal.type(until_log_in(brno) + "y\n");
    ASSERT_TRUE(terminal.await_text("type yes to trust")) << terminal.bytes;
    terminal.type("no\n");
    ASSERT_TRUE(terminal.await_text("Slurm account to charge (Enter")) << terminal.bytes;
    EXPECT_THAT(terminal.bytes, HasSubstr("was not accepted"));
  }
  test::OnTerminal terminal = config();
  terminal.type(until_log_in(brno) + "y\n");
  ASSERT_TRUE(terminal.await_text("type yes to trust")) << terminal.bytes;
  terminal.type("yes\n");
  ASSERT_TRUE(terminal.await_text("Slurm account to charge (Enter")) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, HasSubstr("sacctmgr has no answer"));
  terminal.type("\n\n\n\n\n/scratch/x\n\n\n/scratch/it.tokens\n\ny\n");
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
  EXPECT_EQ(slurm().account, "");
  EXPECT_EQ(slurm().partition, "main");
  EXPECT_EQ(slurm().gpus_per_node, 2);
  EXPECT_THAT(terminal.bytes,
              HasSubstr("Proposal: 1 node: the size of the model is not known yet"));
}

}  // namespace
}  // namespace xffl
