// The parsers of the check job's texts, with good and with hostile input.
#include "xffl/trial/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/job/check_report.h"

namespace xffl::trial {
namespace {

TEST(NodeFacts, AreReadByName) {
  const NodeFacts facts = parse_node_facts(
      "host n1\narch aarch64\nglibc 2.31\ncpus 72\nmemory 1000\navailable 500\ndriver 535.274.02\n"
      "gpus 4\nfabric cxi0 200\nfabric cxi1 200\nfree 7\npath 0 ok\npath 1 missing\n"
      "path 2 unreadable\nhung path-3\nhung driver\nend\n");
  EXPECT_EQ(facts.arch, "aarch64");
  EXPECT_EQ(facts.driver, "535.274.02");
  EXPECT_EQ(facts.gpus, 4);
  EXPECT_EQ(facts.available, 500 * 1024);
  EXPECT_EQ(facts.free, 7 * 1024);
  EXPECT_DOUBLE_EQ(facts.fabric_gbits, 400);
  EXPECT_EQ(facts.paths.at(0), PathState::kOk);
  EXPECT_EQ(facts.paths.at(1), PathState::kMissing);
  EXPECT_EQ(facts.paths.at(2), PathState::kUnreadable);
  EXPECT_EQ(facts.paths.at(3), PathState::kHung);
  EXPECT_EQ(facts.hung, std::vector<std::string>{"driver"});
  EXPECT_TRUE(facts.complete);
}

// node.sh runs on this machine with an nvidia-smi of a node with two GPUs.
TEST(NodeFacts, HaveTheStateOfEachPathAndTheGpus) {
  const test::TempDir dir;
  make_dirs(dir / "out");
  make_dirs(dir / "bin");
  write_file_atomic(dir / "bin/nvidia-smi",
                    "#!/bin/sh\n[ \"$1\" = -L ] || { echo 580.65.06; echo 580.65.06; exit; }\n"
                    "echo 'GPU 0: H100 (UUID: a)'\necho '  MIG 1g.10gb Device 0: (UUID: b)'\n"
                    "echo 'GPU 1: H100 (UUID: c)'\n");
  std::filesystem::permissions(dir / "bin/nvidia-smi", std::filesystem::perms::owner_all);
  write_file_atomic(dir / "a.tokens", "text");
  write_file_atomic(dir / "paths.txt", dir.path().string() + "\n" + (dir / "missing").string() +
                                           "\n" + (dir / "a.tokens").string() + "\n");
  const ProcessResult result =
      run_process({.argv = {"sh", "-c", "PATH=\"$1:$PATH\" exec sh \"$0\"",
                            XFFL_SOURCE_DIR "/src/trial/node.sh", (dir / "bin").string()},
                   .env = {{"RANK", "4"}, {"LOCAL_RANK", "0"}, {"XFFL_CHECK_PATIENCE", "100"}},
                   .cwd = dir.path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const NodeFacts facts = parse_node_facts(read_file(dir / "out/node-4.txt", kMaxNodeFacts));
  EXPECT_TRUE(facts.complete);
  EXPECT_EQ(facts.paths, (std::map<int, PathState>{
                             {0, PathState::kOk}, {1, PathState::kMissing}, {2, PathState::kOk}}));
  EXPECT_EQ(facts.gpus, 2);
  EXPECT_EQ(facts.driver, "580.65.06");
  EXPECT_NE(facts.host, "");
  EXPECT_GT(facts.cpus, 0);
  EXPECT_GT(facts.available, 0);
  EXPECT_GE(facts.free, 0);
}

// node.sh runs on this machine, with the files of AMD's driver in a folder.
TEST(NodeFacts, HaveAnAmdDriver) {
  const test::TempDir dir;
  write_file_atomic(dir / "paths.txt", "");
  make_dirs(dir / "dev");
  make_dirs(dir / "sys/module/amdgpu");
  const auto driver = [&] {
    std::filesystem::remove_all(dir / "out");
    make_dirs(dir / "out");
    const ProcessResult result =
        run_process({.argv = {"sh", XFFL_SOURCE_DIR "/src/trial/node.sh"},
                     .env = {{"XFFL_AMD_ROOT", dir.path().string()}, {"RANK", "0"}},
                     .cwd = dir.path()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const NodeFacts facts = parse_node_facts(read_file(dir / "out/node-0.txt", kMaxNodeFacts));
    EXPECT_TRUE(facts.complete);
    return facts.amd_driver;
  };
  EXPECT_EQ(driver(), "");
  write_file_atomic(dir / "dev/kfd", "");
  EXPECT_EQ(driver(), "amdgpu");
  write_file_atomic(dir / "sys/module/amdgpu/version", "6.7.0\n");
  EXPECT_EQ(driver(), "amdgpu 6.7.0");
}

// A facility may have hundreds of shards. The site's libraries stand behind them.
TEST(NodeFacts, NameAMissingPathBehindManyOthers) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "path " + std::to_string(i) + " ok\n";
  const NodeFacts facts = parse_node_facts(text + "path 1000 missing\nhung path-1001\nend\n");
  EXPECT_EQ(facts.paths.size(), 1002u);
  EXPECT_EQ(facts.paths.at(1000), PathState::kMissing);
  EXPECT_EQ(facts.paths.at(1001), PathState::kHung);
}

TEST(NodeFacts, HostileTextIsBounded) {
  std::string text =
      "host \x1b[31mred\ngpus 99999999999999999999\nfree -1\npath 10000 ok\npath 1\n";
  for (int i = 0; i < 9000; ++i) text += "fabric x 99999999\n";
  const NodeFacts facts = parse_node_facts(text);
  EXPECT_EQ(facts.host.find('\x1b'), std::string::npos);
  EXPECT_EQ(facts.gpus, 0);
  EXPECT_EQ(facts.free, -1);
  EXPECT_TRUE(facts.paths.empty());
  EXPECT_LE(facts.fabrics.size(), 256u);
  EXPECT_FALSE(facts.complete);
}

TEST(NcclLog, TheChosenNetworkIsNamed) {
  const NcclLog socket = parse_nccl_log(
      "n1:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.\n"
      "n1:7:7 [0] NCCL INFO NET/IB : No device found.\n"
      "n1:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
      "n1:7:7 [0] NCCL INFO Using network Socket\nNCCL version 2.28.9+cuda13.0\n");
  EXPECT_EQ(socket.network, "Socket");
  EXPECT_EQ(socket.version, "2.28.9+cuda13.0");
  EXPECT_THAT(socket.plugin_problem, testing::HasSubstr("libnccl-net.so"));
  EXPECT_EQ(parse_nccl_log("x NCCL INFO Using network AWS Libfabric\n").network, "AWS Libfabric");
  EXPECT_EQ(parse_nccl_log("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n").network, "IB");
  EXPECT_EQ(parse_nccl_log("").network, "");
}

TEST(CheckReport, IsReadAsWritten) {
  job::CheckReport report{.backend = "nccl", .ranks = 8, .nodes = 2, .signalled_ranks = 7};
  report.step_seconds = 0.5;
  report.problem = "bad \xff text";
  job::CheckReport back = job::parse_check_report(job::format_check_report(report), "f");
  EXPECT_EQ(back.signalled_ranks, 7);
  EXPECT_EQ(back.step_seconds, 0.5);
  job::RankCheck rank;
  rank.rank = 3;
  rank.host = "n1";
  rank.data.push_back({.path = "/d/a.tokens", .vocab_size = 300});
  EXPECT_EQ(job::parse_rank_check(job::format_rank_check(rank), "f"), rank);
  EXPECT_ANY_THROW(job::parse_check_report("{}", "f"));
  std::string later = job::format_rank_check(rank);
  later.insert(later.find("\"problem\""), "\"further\":[1],");  // of the rank
  later.insert(later.rfind("\"problem\""), "\"further\":1,");   // of its shard
  EXPECT_EQ(job::parse_rank_check(later, "f"), rank);
  EXPECT_ANY_THROW(job::parse_rank_check(job::format_check_report(report), "f"));
}

}  // namespace
}  // namespace xffl::trial
