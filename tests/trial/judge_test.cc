// Each bad fact is named with its remedy.
#include "xffl/trial/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xffl::trial {
namespace {

using Severity = CheckResult::Severity;
using testing::HasSubstr;
using testing::Not;

// Two nodes with four GPUs each, as they should be.
struct Case {
  Expected expected{.facility = "alba",
                    .version = "0.1.0",
                    .arch = "x86_64",
                    .queue_manager = "slurm",
                    .nodes = 2,
                    .ranks = 8,
                    .gpus_per_node = 4,
                    .paths = {"/work", "/data/a.tokens"},
                    .needed_bytes = 1000,
                    .vocab_size = 300,
                    .max_positions = 64,
                    .steps_per_round = 3600,
                    .round_nodes = 4,
                    .walltime = std::chrono::hours(2)};
  Found found;

  Case() {
    for (int node = 0; node < 2; ++node) {
      NodeFacts facts;
      facts.host = "n" + std::to_string(node);
      facts.arch = "x86_64";
      facts.driver = "590.1";
      facts.gpus = 4;
      facts.free = 5000;
      facts.fabrics = {"cxi0"};
      facts.fabric_gbits = 800;
      facts.paths = {{0, PathState::kOk}, {1, PathState::kOk}};
      found.nodes.push_back(facts);
      found.nccl.push_back({.network = "AWS Libfabric", .version = {}, .plugin_problem = {}});
      for (int local = 0; local < 4; ++local) {
        job::RankCheck rank{.rank = node * 4 + local, .host = facts.host};
        rank.trainer = "xffl-train 0.1.0 (torch 2.11.0)";
        rank.cuda = "13.0";
        rank.device = "cuda:0";
        rank.gpu = "H100";
        rank.memory_bytes = 80'000'000'000;
        rank.data = {
            {.path = "/data/a.tokens", .vocab_size = 300, .sequence_length = 64, .problem = {}}};
        found.ranks.push_back(rank);
      }
    }
    job::CheckReport report{.backend = "nccl", .ranks = 8, .nodes = 2};
    report.all_reduce_bytes = 1 << 28;
    report.all_reduce_seconds = 0.005;
    report.signalled_ranks = 8;
    report.step_seconds = 1;
    report.step_tokens = 1000;
    report.peak_memory_bytes = 40'000'000'000;
    report.complete = true;
    found.report = report;
  }

  // The results that are not ok, as "check: message -> fix".
  std::string problems() const {
    std::string text;
    for (const CheckResult& each : judge(expected, found))
      if (each.severity != Severity::kOk)
        text += (each.severity == Severity::kError ? "E " : "W ") + each.check + ": " +
                each.message + " -> " + each.fix + "\n";
    return text;
  }
};

TEST(Judge, AGoodFacilityHasNoProblem) {
  const Case good;
  EXPECT_EQ(good.problems(), "");
}

TEST(Judge, AnUnknownSpaceOrNumberOfGpusIsNoProblem) {
  Case unknown;
  unknown.found.nodes[0].free = -1;
  unknown.found.nodes[1].gpus = 0;
  EXPECT_EQ(unknown.problems(), "");
}

TEST(Judge, AnOlderTrainerOnOneNodeIsNamed) {
  Case bad;
  bad.found.ranks.back().trainer = "xffl-train 0.0.9 (torch 2.11.0)";
  EXPECT_THAT(
      bad.problems(),
      HasSubstr("E trainer: xffl-train 0.0.9 (torch 2.11.0) on n1, this xffl is 0.1.0 -> "));
}

TEST(Judge, AMountThatIsMissingOrHangsIsNamedWithItsNode) {
  Case bad;
  bad.found.nodes[1].paths[1] = PathState::kMissing;
  EXPECT_THAT(bad.problems(), HasSubstr("E mount: on n1 /data/a.tokens does not exist -> "));
  EXPECT_THAT(bad.problems(), HasSubstr("extra: --exclude=n1)"));
  bad.expected.queue_manager = "pbs";
  EXPECT_THAT(bad.problems(), HasSubstr("or exclude the node\n"));
  bad.found.nodes[1].paths[1] = PathState::kHung;
  EXPECT_THAT(bad.problems(), HasSubstr("on n1 reading /data/a.tokens does not end"));
  bad.found.nodes[1].paths[1] = PathState::kUnreadable;
  EXPECT_THAT(bad.problems(), HasSubstr("on n1 /data/a.tokens cannot be read"));
}

TEST(Judge, ALibraryThatOneNodeLacksIsNamed) {
  Case bad;
  bad.expected.libraries = {"/opt/fabric/libfabric.so.1", "/opt/fabric/libnccl-net.so"};
  const int first = static_cast<int>(bad.expected.paths.size());
  bad.found.nodes[0].paths[first] = bad.found.nodes[0].paths[first + 1] = PathState::kOk;
  EXPECT_EQ(bad.problems(), "");
  bad.found.nodes[1].paths[first + 1] = PathState::kMissing;
  EXPECT_THAT(bad.problems(),
              HasSubstr("E library: on n1 the library /opt/fabric/libnccl-net.so does not exist -> "
                        "tell the site, and exclude the node (facilities.alba.slurm.extra: "
                        "--exclude=n1); or correct the path (facilities.alba.library_path"));
  bad.found.nodes[1].paths[first + 1] = PathState::kUnreadable;
  EXPECT_THAT(bad.problems(), HasSubstr("libnccl-net.so cannot be read -> "));
  bad.found.nodes[1].paths[first + 2] = PathState::kMissing;  // not asked for
  EXPECT_THAT(bad.problems(), Not(HasSubstr("mount")));
}

TEST(Judge, AnOldDriverNamesTheCompatibilityFolder) {
  Case bad;
  bad.found.nodes[0].driver = "535.274.02";
  EXPECT_EQ(bad.problems(), "");  // the GPUs work: a forward-compatibility library is there
  for (job::RankCheck& rank : bad.found.ranks)
    if (rank.host == "n0") rank.problem = "the driver is too old";
  EXPECT_THAT(bad.problems(), HasSubstr("E driver: n0 has the driver 535.274.02; CUDA 13.0"))
      << "n1 with its newer driver works";
  for (job::RankCheck& rank : bad.found.ranks) {
    rank.gpu.clear();
    rank.problem = "the driver is too old";
  }
  EXPECT_THAT(bad.problems(), HasSubstr("E driver: n0 has the driver 535.274.02; CUDA 13.0 of the "
                                        "trainer needs 580 or newer -> set "
                                        "facilities.alba.cuda_compat to the site's "
                                        "forward-compatibility folder"));
  EXPECT_THAT(bad.problems(), HasSubstr("or deploy the flavour cu128"));
  bad.found.nodes[0].arch = "aarch64";
  EXPECT_THAT(bad.problems(), HasSubstr("or deploy the flavour cpu"));
  EXPECT_THAT(bad.problems(),
              HasSubstr("E device: rank 0 on n0 and 7 other ranks: the driver is too old -> "));
}

TEST(Judge, ATrainerForCpusNamesTheFlavourForTheDriver) {
  Case bad;
  for (job::RankCheck& rank : bad.found.ranks) {
    rank.gpu.clear();
    rank.cuda.clear();
  }
  const std::string start =
      "E device: rank 0 on n0 and 3 other ranks: computes on the CPU, but the job has 4 GPUs on a "
      "node -> the trainer was built for CPUs: deploy ";
  EXPECT_THAT(bad.problems(), HasSubstr("the flavour cu13 (the driver is 590.1)"));
  bad.found.nodes[0].driver = "580.65.06";
  EXPECT_THAT(bad.problems(), HasSubstr(start + "the flavour cu13 (the driver is 580.65.06)\n"));
  bad.found.nodes[0].driver = "535.274.02";
  EXPECT_THAT(bad.problems(), HasSubstr(start + "the flavour cu128 (the driver is 535.274.02)\n"));
  bad.found.nodes[0].driver = "470.82.01";
  EXPECT_THAT(bad.problems(),
              HasSubstr(start + "the flavour cu13, and set facilities.alba.cuda_compat to"));
  bad.found.nodes[0].driver.clear();
  EXPECT_THAT(bad.problems(), HasSubstr(start + "a flavour for CUDA\n"));
}

TEST(Judge, TcpBesideAFastNetworkIsAnError) {
  Case bad;
  bad.found.nccl = {{.network = "Socket", .version = {}, .plugin_problem = ": no libnccl-net.so"}};
  EXPECT_THAT(bad.problems(), HasSubstr("TCP, although the nodes have cxi0"));
  EXPECT_THAT(bad.problems(), HasSubstr("no libnccl-net.so"));
  bad.found.nccl.push_back({.network = "AWS Libfabric", .version = {}, .plugin_problem = {}});
  bad.found.nodes[0].fabrics.clear();
  bad.found.nodes[1].fabrics.clear();
  EXPECT_THAT(bad.problems(), HasSubstr("the nodes use different networks"));
}

TEST(Judge, ASlowNetworkIsAWarningWithItsFloor) {
  Case bad;
  bad.found.report->all_reduce_seconds = 0.1;  // 4.7 GB/s on wires of 100 GB/s
  EXPECT_THAT(bad.problems(), HasSubstr("W network: "));
  EXPECT_THAT(bad.problems(), HasSubstr("8 ranks on 2 nodes: 4.70 GB/s over nccl, "));
  EXPECT_THAT(bad.problems(), HasSubstr("at least 25.0 GB/s"));
}

TEST(Judge, DataOfAnotherVocabularyOrLength) {
  Case bad;
  bad.found.ranks[5].data[0].vocab_size = 301;
  EXPECT_THAT(bad.problems(), HasSubstr("vocabulary of 301, the model has 300 -> tokenize"));
  bad.found.ranks[5].data[0] = {
      .path = "/data/a.tokens", .vocab_size = 300, .sequence_length = 65, .problem = {}};
  EXPECT_THAT(bad.problems(),
              HasSubstr("sequences of 65 tokens, the model takes 64 -> tokenize the "
                        "text with xffl-tokenize encode --sequence-length 64\n"));
  bad.expected.prepared = "/data";
  EXPECT_THAT(
      bad.problems(),
      HasSubstr("the model takes 64 -> set facilities.alba.data.sequence_length to 64, then "
                "xffl prepare alba\n"));
  bad.found.ranks[5].data[0] = {.path = "/data/a.tokens", .problem = "permission denied"};
  EXPECT_THAT(bad.problems(),
              HasSubstr("E data: n1: /data/a.tokens cannot be read: permission denied -> "));
}

TEST(Judge, TrainerArchitectureSpaceSignalAndNodes) {
  Case bad;
  bad.found.nodes[0].arch = "aarch64";
  bad.found.nodes[0].free = 10;
  bad.found.ranks[0].trainer = "xffl-train 0.0.9 (torch 2.11.0)";
  bad.found.report->signalled_ranks = 4;
  const std::string problems = bad.problems();
  EXPECT_THAT(problems, HasSubstr("E architecture: n0 is aarch64, the log-in node is x86_64"));
  EXPECT_THAT(problems, HasSubstr("E free space: n0"));
  EXPECT_THAT(problems, HasSubstr("E trainer: xffl-train 0.0.9"));
  EXPECT_THAT(problems, HasSubstr("W signal: the warning before the walltime reached 4 of 8"));
  bad.found.nodes.pop_back();
  EXPECT_THAT(bad.problems(), HasSubstr("E nodes: 1 of 2 nodes have answered"));
  bad.found.ranks.clear();
  EXPECT_THAT(bad.problems(), HasSubstr("E trainer: xffl-train has not started -> put a bundle"));
  bad.expected.has_image = true;
  EXPECT_THAT(bad.problems(), HasSubstr("is the image there (facilities.alba.image.file)"));
  EXPECT_THAT(bad.problems(), Not(HasSubstr("bundle")));
}

TEST(Judge, AFailedPartHasItsMessage) {
  Case bad;
  bad.found.report->complete = false;
  bad.found.report->part = "steps";
  bad.found.report->problem = "out of memory";
  EXPECT_THAT(bad.problems(), HasSubstr("E steps: out of memory"));
}

TEST(Judge, AJobThatEndedTooSoonOrLacksRanksIsAnError) {
  Case killed;
  killed.found.report->complete = false;
  killed.found.report->part = "steps";
  killed.found.report->step_seconds = 0;
  killed.found.output = "\n  oom-kill";
  EXPECT_THAT(
      killed.problems(),
      HasSubstr("E steps: the job has ended in this part; its output ends with:\n  oom-kill"));
  Case few;
  few.found.ranks.resize(6);
  EXPECT_THAT(few.problems(), HasSubstr("E ranks: 6 of 8 ranks have started"));
  Case apart;
  apart.found.report.reset();
  EXPECT_THAT(apart.problems(), HasSubstr("E ranks: the ranks have not met"));
}

TEST(Judge, AFileThatCannotBeReadIsAnError) {
  Case damaged;
  damaged.found.unreadable = {"out/rank-3.json: 'rank' is missing"};
  EXPECT_THAT(damaged.problems(),
              testing::StartsWith("E job's files: out/rank-3.json: 'rank' is missing -> "));
}

TEST(Judge, ANodeWithoutADriverOrWithFewerGpusIsNamed) {
  Case bare;
  bare.found.nodes[0].driver.clear();
  bare.found.nodes[1].gpus = 3;
  EXPECT_THAT(bare.problems(), HasSubstr("E driver: n0 has no NVIDIA driver"));
  EXPECT_THAT(bare.problems(), HasSubstr("E GPUs: n1 shows 3 GPUs, the job asked for 4"));
}

TEST(Judge, AnAmdDriverFitsATrainerOfTheUsersOwn) {
  Case amd;
  for (NodeFacts& node : amd.found.nodes) {
    node.driver.clear();
    node.amd_driver = "amdgpu 6.7.0";
  }
  EXPECT_THAT(amd.problems(), HasSubstr("E driver: n0 has AMD's driver amdgpu 6.7.0, and "
                                        "xffl-train has no ROCm build -> name a trainer of your "
                                        "own (facilities.alba.trainer: {command: [...]})"));
  amd.expected.own_trainer = true;
  EXPECT_THAT(amd.problems(), Not(HasSubstr("E ")));
  amd.found.nodes[1].amd_driver.clear();
  EXPECT_THAT(amd.problems(), HasSubstr("W driver: n1 has no NVIDIA driver and no AMD driver"));
}

TEST(Judge, AHungDriverIsNamedWithItsNode) {
  Case hung;
  hung.found.nodes[1].hung = {"driver"};
  EXPECT_THAT(hung.problems(), HasSubstr("E driver: on n1 the probe 'driver' does not end -> "));
}

TEST(Judge, ATrainerOfTheUsersOwnHasNoCheck) {
  Case own;
  own.expected.own_trainer = true;
  own.found.ranks.clear();
  own.found.report.reset();
  EXPECT_THAT(own.problems(), testing::StartsWith("W trainer: not checked: "));
}

TEST(Judge, ARoundMustEndBeforeTheWarning) {
  Case tight;  // a round takes an hour
  tight.expected.walltime = std::chrono::minutes(65);
  EXPECT_EQ(tight.problems(), "");
  tight.expected.warning = std::chrono::minutes(10);
  EXPECT_THAT(tight.problems(), HasSubstr("W walltime: "));
}

// The documented defaults: a part of a large text, all of it measured before and after the steps.
TEST(Judge, TheValidationCountsAgainstTheWalltime) {
  Case large;  // a round takes an hour
  large.found.report->step_tokens = 13'000;
  large.expected.max_positions = 2048;
  large.expected.round_ranks = 8;
  large.expected.validation = {"/data/v.tokens"};
  for (job::RankCheck& rank : large.found.ranks)
    rank.data.push_back({.path = "/data/v.tokens",
                         .vocab_size = 300,
                         .sequence_length = 2048,
                         .sequences = 2'000'000,
                         .problem = {}});
  EXPECT_THAT(
      large.problems(),
      HasSubstr("W walltime: a round of 3600 steps takes 1 h, 4 node-hours, and 3501 min of "
                "validation; the walltime of 2 h does not suffice -> limit the validation by "
                "training.validation_samples (sequences of each set, now 0: all), or raise"));
  large.expected.round_ranks = 16;
  EXPECT_THAT(large.problems(), HasSubstr("and 1750 min of validation"));
  large.expected.resumes = true;
  large.expected.steps_per_round = 36'000;  // several jobs, each of which would measure first
  EXPECT_THAT(large.problems(), HasSubstr("training.validation_samples"));
  large.expected.validation_samples = 1000;
  EXPECT_THAT(large.problems(), HasSubstr("-> further jobs continue the round"));
  large.expected.steps_per_round = 3600;
  EXPECT_EQ(large.problems(), "");
}

TEST(Judge, ARoundBeyondTheWalltimeAndATightMemory) {
  Case bad;
  bad.found.report->step_seconds = 3;
  bad.found.report->peak_memory_bytes = 79'000'000'000;
  const std::string problems = bad.problems();
  EXPECT_THAT(problems, HasSubstr("a round of 3600 steps takes 3 h, 12 node-hours; the walltime of "
                                  "2 h does not suffice -> lower training.steps_per_round"));
  EXPECT_THAT(problems, HasSubstr("W memory: "));
}

TEST(Judge, TheSmallestGpuDecidesWhetherTheMemoryIsTight) {
  Case mixed;  // a rank needs 40 GB
  mixed.found.ranks[5].memory_bytes = 41'000'000'000;
  EXPECT_THAT(mixed.problems(),
              HasSubstr("W memory: a rank needs at most 40.0 GB of 41.0 GB GPU memory"));
}

}  // namespace
}  // namespace xffl::trial
