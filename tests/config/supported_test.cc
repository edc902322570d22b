// The limits of the built-in trainer are checked when xffl.yaml is read, not after the queue, with
// the trainer's own messages.
#include "texts.h"

namespace xffl::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// 8 ranks of a job of Slurm, 2 of a local one.
constexpr const char* kTwo = R"(project: p
model: /m
training:
  steps_per_round: 4
  batch_size: 16
  micro_batch_size: 8
  KEYS
facilities:
  alba:
    access: ssh
    ssh: {hosts: [login01], user: me}
    scheduler: slurm
    slurm: {nodes: 2, gpus_per_node: 4, time: 12h, warning: 10m}
    workdir: /scratch/me/xffl
    data: {train: /a.tokens}
  borea:
    world_size: 2
    data: {train: /b.tokens, validation: {it: /v.tokens}}
    OWN
)";

std::string problems_of(const std::string& keys, const std::string& own = "") {
  return problems(with(with(kTwo, "KEYS", keys), "OWN", own));
}

TEST(Supported, AcceptsSupportedTrainings) {
  EXPECT_EQ(problems_of("sharding: full"), "");
  EXPECT_EQ(problems_of("sharding: hybrid"), "") << "groups of a machine's ranks";
  EXPECT_EQ(problems_of("sharding: hybrid\n  groups: {count: 2}"), "")
      << "a group may have fewer ranks than its machine";
  EXPECT_EQ(problems_of("pipeline: {stages: 2}\n  freeze: ['*norm*']"), "");
  EXPECT_EQ(problems_of("pipeline: {stages: 2}\n  lora: {rank: 4}"), "");
  EXPECT_EQ(problems_of("lora: {rank: 4}\n  freeze: ['*.lora_A.weight']"), "");
  EXPECT_EQ(problems_of("groups: {count: 2, exchange: weights, interval: 2}"), "");
  EXPECT_EQ(problems_of("seed: 1", "training: {batch_size: 3, pipeline: {stages: 2}}"), "")
      << "both ranks of a pipeline compute the same sequences";
}

TEST(Supported, ProblemsAreReportedAtTheKey) {
  const Wrong wrongs[] = {
      {"pipeline: {stages: 2}\n  groups: {count: 2}", "7",
       "training.pipeline.stages is 2, with training.groups: not supported together"},
      {"pipeline: {stages: 2}\n  sharding: full", "7", "with sharding 'full'"},
      {"groups: {count: 2, exchange: gradients, interval: 3}", "7",
       "training.groups.interval is 3, but gradients are exchanged in every step"},
      {"groups: {count: 2, interval: 3}\n  validation_interval: 4", "8",
       "training.validation_interval is 4, but only every 3 steps"},
      {"masters: split\n  precision: fp32", "7",
       "training.masters is split, but training.precision is fp32: only with bf16"},
      {"moment_dtype: bf16\n  precision: fp32", "7", "training.moment_dtype is bf16, but"},
      {"precision: bf16\n  masters: none\n  groups: {count: 2}", "8",
       "training.masters is none, with training.groups that exchange weights"},
      {"lora: {rank: 4}\n  precision: bf16\n  masters: split", "9",
       "training.masters is split, with training.lora: adapters are small"},
      {"attention: flash\n  precision: fp32", "7",
       "training.attention is flash, but training.precision is fp32"},
      {"attention: cudnn\n  precision: fp32", "7",
       "training.attention is cudnn, but training.precision is fp32"},
      {"attention: cudnn\n  precision: bf16\n  deterministic: true", "7",
       "training.attention is cudnn, with training.deterministic"},
      {"momentum: 0.9", "7", "training.momentum is for the optimizer sgd"},
      {"optimizer: sgd\n  nesterov: true", "8", "training.nesterov needs"},
      {"shard_group_size: 2", "7", "shards over all"},
      {"sharding: hybrid\n  shard_group_size: 3", "8",
       "training.shard_group_size is 3, which does"},
  };
  for (const Wrong& wrong : wrongs)
    EXPECT_THAT(problems_of(wrong.from),
                AllOf(StartsWith(std::string("xffl.yaml:") + wrong.to + ":"),
                      HasSubstr(wrong.message), HasSubstr("('alba')")))
        << wrong.from;
}

TEST(Supported, EachFacilityIsCheckedWithItsRanksAndData) {
  const std::string stop = problems_of("validation_interval: 2\n  early_stop_patience: 3");
  EXPECT_THAT(stop, AllOf(HasSubstr("early_stop_patience needs"), HasSubstr("('alba')")));
  EXPECT_THAT(stop, testing::Not(HasSubstr("('borea')"))) << "it has a validation set";
  const std::string sums =
      problems_of("precision: bf16\n  gradient_dtype: bf16", "training: {micro_batch_size: 4}");
  EXPECT_THAT(sums, AllOf(HasSubstr("with 2 micro-batches a step on each rank"),
                          HasSubstr("('borea')"), testing::Not(HasSubstr("('alba')"))));
}

// The ranks that share a batch and shards are those of one group.
TEST(Supported, GroupsAreCheckedWithTheRanksOfAGroup) {
  const std::string groups = "groups: {count: 2, exchange: gradients}\n  ";
  EXPECT_THAT(problems_of(groups + "precision: bf16\n  gradient_dtype: bf16"),
              AllOf(HasSubstr("with 2 micro-batches a step on each rank"), HasSubstr("('borea')"),
                    testing::Not(HasSubstr("('alba')"))));
  EXPECT_THAT(problems_of(groups + "sharding: hybrid\n  shard_group_size: 8",
                          "training: {sharding: none, shard_group_size: 0}"),
              AllOf(HasSubstr("training.shard_group_size is 8, which does not divide the 4 ranks"),
                    HasSubstr("('alba')")));
}

// A stage's ranks divide the batch, not all ranks of the job.
TEST(Supported, PipelinesAreCheckedWithTheRanksOfAStage) {
  EXPECT_THAT(problems_of("pipeline: {stages: 2}\n  precision: bf16\n  gradient_dtype: bf16"),
              AllOf(HasSubstr("with 2 micro-batches a step on each rank"), HasSubstr("('borea')"),
                    testing::Not(HasSubstr("('alba')"))));
}

// Groups with data of different sizes would have different numbers of steps.
TEST(Supported, GroupsHaveNoEpochs) {
  EXPECT_THAT(problems_of("groups: {count: 2}", "training: {epochs_per_round: 2}"),
              AllOf(HasSubstr("training.epochs_per_round with training.groups"),
                    HasSubstr("('borea')"), testing::Not(HasSubstr("('alba')"))));
}

TEST(Supported, OtherTrainersAreNotChecked) {
  EXPECT_THAT(problems_of("seed: 1", "training: {precision: fp32, masters: split}"),
              HasSubstr("only with bf16"));
  EXPECT_EQ(problems_of("seed: 1",
                        "training: {precision: fp32, masters: split}\n"
                        "    trainer: {command: [./train.py]}"),
            "");
}

}  // namespace
}  // namespace xffl::config
