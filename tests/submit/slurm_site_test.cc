// The answers of sinfo and sacctmgr, as read for `xffl config`.
#include "xffl/submit/slurm_site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_session.h"

namespace xffl::submit {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kPartitions =
    "serial|up|4:00:00|1|(null)|serial*|96000|1\n"
    "boost|up|1-00:00:00|3000|gpu:a100:4(S:0-1)|boost|512000+|1-64\n"
    "boost|up|1-00:00:00|50|gpu:h100:8|boost|256000|1-64\n"
    "long|drain|infinite|2|gpu:2,craynetwork:4|long|many|1-infinite\n"
    "xffl-end\n";

TEST(SlurmSite, ReadsPartitionsWithTheirGpus) {
  const auto found = read_partitions(kPartitions);
  ASSERT_TRUE(found);
  constexpr int64_t kMegabyte = 1 << 20;
  EXPECT_THAT(
      *found,
      ElementsAre(
          SlurmPartition{"serial", true, true, 1, 0, "", hours(4), 96000 * kMegabyte, 1},
          SlurmPartition{"boost", false, true, 3050, 4, "a100", hours(24), 256000 * kMegabyte, 64},
          SlurmPartition{"long", false, false, 2, 2, "", std::nullopt, 0, 0}));
}

TEST(SlurmSite, SkipsRowsThatAreNoPartitions) {
  const auto found = read_partitions(
      "Welcome to the machine!\n"
      "a b|up|1:00:00|1|(null)|a b|1|1\n"
      "-x|up|1:00:00|1|(null)|-x|1|1\n"
      "$(reboot)|up|1:00:00|1|(null)|x|1|1\n"
      "\x1b[31mred|up|1:00:00|1|(null)|red|1|1\n"
      "many|up|1:00:00|99999999999|(null)|many|1|1\n"
      "never|up|soon|1|(null)|never|1|1\n"
      "gpus|up|1:00:00|1|gpu:1000000,gpu:a b:x|gpus|1|1\n"
      "short|up|1:00:00|1\n"
      "xffl-end\n");
  ASSERT_TRUE(found);
  EXPECT_THAT(*found,
              ElementsAre(SlurmPartition{"gpus", false, true, 1, 0, "", hours(1), 1 << 20, 1}));
  EXPECT_FALSE(read_partitions("main|up|1:00:00|1|(null)|main*|1|1\n"));
  EXPECT_FALSE(read_partitions(""));
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "p" + std::to_string(i) + "|up|1:00:00|1||p|1|1\n";
  EXPECT_EQ(read_partitions(many + "xffl-end\n").value().size(), 200u);
}

TEST(SlurmSite, TheSmallestNodesOfAPartitionCount) {
  for (const char* rows :
       {"main|up|1:00:00|1|(null)|main|100|1\nmain|up|1:00:00|1|(null)|main|200|1\n",
        "main|up|1:00:00|1|(null)|main|200|1\nmain|up|1:00:00|1|(null)|main|100|1\n"}) {
    const auto found = read_partitions(std::string(rows) + "xffl-end\n");
    ASSERT_TRUE(found);
    ASSERT_EQ(found->size(), 1u);
    EXPECT_EQ(found->front().node_memory, 100 << 20) << rows;
  }
}

// Answers a program by its first word behind "LC_ALL=C".
class FakeSite : public test::FakeSession {
 public:
  std::map<std::string, remote::CommandResult> answers;
  FakeSite() {
    on_run = [this](const std::vector<std::string>& argv, const std::string&) {
      for (const auto& [part, answer] : answers)
        if (argv.back().find(part) != std::string::npos) return answer;
      return remote::CommandResult{.exit_code = 127, .out = {}, .err = "sh: 1: not found"};
    };
  }
};

TEST(SlurmSite, TheDefaultAccountComesFirst) {
  FakeSite session;
  session.answers = {
      {"sinfo", {.exit_code = 0, .out = kPartitions, .err = {}}},
      {"show assoc", {0, "eu|normal,boost_dbg\nit|normal\nxffl-end\n", ""}},
      {"show user", {0, "it|None\nxffl-end\n", ""}},
      {"show qos", {0, "normal||\nboost_dbg|00:30:00|cpu=64,node=2\nother|1:00|\nxffl-end\n", ""}}};
  const SlurmSite site = ask_slurm_site(session, {});
  EXPECT_THAT(site.problems, ElementsAre());
  EXPECT_THAT(site.accounts, ElementsAre("it", "eu"));
  EXPECT_THAT(site.qos, ElementsAre(SlurmQos{"boost_dbg", minutes(30), 2}, SlurmQos{"normal"}));
  ASSERT_NE(site.proposed(), nullptr);
  EXPECT_EQ(site.proposed()->name, "boost");
  EXPECT_EQ(proposed_walltime(site.proposed(), site.find_qos("normal")), hours(12));
  EXPECT_EQ(proposed_walltime(site.proposed(), site.find_qos("boost_dbg")), minutes(30));
  EXPECT_EQ(proposed_walltime(site.partition("serial"), nullptr), hours(4));
  EXPECT_EQ(proposed_walltime(nullptr, nullptr), hours(12));
}

constexpr int64_t kGigabyte = 1 << 30;

TEST(SlurmSite, TheMemoryOfAGpuFollowsFromItsType) {
  EXPECT_EQ(gpu_memory("a100"), 40 * kGigabyte);
  EXPECT_EQ(gpu_memory("nvidia_a100_80gb_pcie"), 80 * kGigabyte);
  EXPECT_EQ(gpu_memory("NVIDIA-A100-SXM4-64GB"), 64 * kGigabyte);
  EXPECT_EQ(gpu_memory("a100_1g.10gb"), 10 * kGigabyte);
  EXPECT_EQ(gpu_memory("gh200"), 96 * kGigabyte);
  EXPECT_EQ(gpu_memory("h200"), 141 * kGigabyte);
  for (const char* unknown : {"", "gpu", "gb", "tesla", "99999999999999999999gb"})
    EXPECT_EQ(gpu_memory(unknown), 0) << unknown;
}

TEST(SlurmSite, NodesAreProposedForTheModelsState) {
  SlurmPartition gpus{.name = "boost", .nodes = 3050, .gpus_per_node = 4, .gpu_type = "a100"};
  const auto nodes = [&](int64_t gigabytes, int64_t batch_size = 0) {
    return proposed_nodes(gpus, nullptr, gigabytes * kGigabyte, batch_size);
  };
  EXPECT_EQ(nodes(28).nodes, 1);
  EXPECT_FALSE(nodes(28).sharded);
  EXPECT_EQ(nodes(28).reason,
            "1 node: parameters, gradients and optimizer need 28.0 GB of a GPU's 40.0 GB");
  EXPECT_EQ(nodes(29).nodes, 1);  // of 4 GPUs
  EXPECT_TRUE(nodes(29).sharded);
  EXPECT_EQ(nodes(112).nodes, 1);
  EXPECT_EQ(nodes(113).nodes, 2);
  EXPECT_EQ(nodes(300).nodes, 3);
  EXPECT_EQ(nodes(300, 32).nodes, 4);  // 12 ranks do not divide 32
  EXPECT_EQ(nodes(300, 8).nodes, 2);
  EXPECT_THAT(
      nodes(300, 8).reason,
      HasSubstr("3 nodes would hold them, but their ranks do not divide the batch size of 8"));
  const SlurmQos debug{.name = "debug", .max_nodes = 1};
  EXPECT_EQ(proposed_nodes(gpus, &debug, 300 * kGigabyte, 32).nodes, 1);
  gpus.max_nodes = 2;
  EXPECT_EQ(nodes(300, 32).nodes, 2);
  EXPECT_THAT(nodes(300, 32).reason, HasSubstr("but a job has at most 2 here"));
  gpus.gpu_type = "";
  EXPECT_EQ(nodes(300).nodes, 1);
  EXPECT_THAT(nodes(300).reason, HasSubstr("Slurm does not tell the memory of a GPU"));
  EXPECT_THAT(nodes(0).reason, HasSubstr("the size of the model is not known yet"));
}

TEST(SlurmSite, NodesWithoutGpusHaveOneRankEach) {
  const SlurmPartition cpus{.name = "cpu", .nodes = 8, .node_memory = 100 * kGigabyte};
  EXPECT_EQ(proposed_nodes(cpus, nullptr, 70 * kGigabyte, 8).nodes, 1);
  EXPECT_EQ(proposed_nodes(cpus, nullptr, 130 * kGigabyte, 8).nodes, 2);
  EXPECT_EQ(proposed_nodes(cpus, nullptr, 150 * kGigabyte, 8).nodes, 4);
  EXPECT_TRUE(proposed_nodes(cpus, nullptr, 150 * kGigabyte, 8).sharded);
  EXPECT_EQ(proposed_nodes(cpus, nullptr, 5000 * kGigabyte, 0).nodes, 8);
  EXPECT_THAT(proposed_nodes({.name = "cpu", .nodes = 8}, nullptr, kGigabyte, 0).reason,
              HasSubstr("Slurm does not tell the memory of a node"));
}

TEST(SlurmSite, AbsentAndFailingCommandsAreProblemsOnly) {
  FakeSite session;
  const SlurmSite nothing = ask_slurm_site(session, {});
  EXPECT_THAT(nothing.problems, ElementsAre(HasSubstr("sinfo has no answer: exit status 127"),
                                            HasSubstr("sacctmgr has no answer")));
  EXPECT_EQ(nothing.proposed(), nullptr);
  session.answers = {
      {"sinfo", {.exit_code = 0, .out = "motd \x1b[2J only\n", .err = {}}},
      {"sacctmgr", {1, "", "sacctmgr: error: You are not running a supported accounting_storage"}}};
  const SlurmSite odd = ask_slurm_site(session, {});
  ASSERT_EQ(odd.problems.size(), 2u);
  EXPECT_THAT(odd.problems[0], testing::AllOf(HasSubstr("motd"), testing::Not(HasSubstr("\x1b"))));
  EXPECT_THAT(odd.problems[1], HasSubstr("supported accounting_storage"));
}

}  // namespace
}  // namespace xffl::submit
