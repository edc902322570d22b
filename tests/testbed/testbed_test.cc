// The testbed of real facilities: the properties on which other tests rely.
#include "support/testbed.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

namespace xffl::test {
namespace {

ProcessResult ssh(const Facility& facility, std::vector<std::string> argv,
                  const std::string& stdin_text = "", const std::string& host = "") {
  std::vector<std::string> full = {"ssh",
                                   "-F",
                                   "none",
                                   "-o",
                                   "BatchMode=yes",
                                   "-o",
                                   "IdentitiesOnly=yes",
                                   "-i",
                                   facility.key.string(),
                                   "-o",
                                   "UserKnownHostsFile=" + facility.known_hosts.string(),
                                   facility.user + "@" + (host.empty() ? facility.host : host)};
  full.insert(full.end(), argv.begin(), argv.end());
  return run_process({.argv = full, .stdin_text = stdin_text, .timeout = std::chrono::seconds(30)});
}

// The number of processes in a network namespace.
size_t num_processes_in(const std::string& network) {
  size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code gone;
    const auto link = std::filesystem::read_symlink(entry.path() / "ns/net", gone);
    if (!gone && link.string() == network) ++found;
  }
  return found;
}

constexpr const char* kPrintRank = R"(#!/bin/sh
srun sh -c 'echo "$(hostname) $SLURM_PROCID of $SLURM_NTASKS, GPUs $CUDA_VISIBLE_DEVICES"'
)";

TEST(Testbed, TwoFacilitiesRunJobsOnTheirNodesAndLeaveNoProcesses) {
  Testbed testbed({"alba", "brno"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  std::vector<std::string> networks;
  std::vector<std::ifstream>
      held;  // another testbed may be given the number of a network that is gone
  for (const char* name : {"alba", "brno"}) {
    const Facility& facility = testbed.facility(name);
    const ProcessResult result =
        ssh(facility,
            {"cd /scratch; sbatch --parsable -J twonodes -o out.txt -N2 "
             "--ntasks-per-node=1 --gpus-per-node=2; until squeue -h -t all "
             "-n twonodes -o %T | grep -q COMPLETED; do sleep 0.1; done; "
             "sort out.txt"},
            kPrintRank);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find(std::string(name) + "1 0 of 2, GPUs 0,1\n"), std::string::npos)
        << result.out;
    EXPECT_NE(result.out.find(std::string(name) + "2 1 of 2, GPUs 0,1\n"), std::string::npos)
        << result.out;
    const pid_t sshd = facility.pids("sshd").at(0);
    const auto network = std::filesystem::path("/proc") / std::to_string(sshd) / "ns/net";
    ASSERT_TRUE(held.emplace_back(network)) << network;
    networks.push_back(std::filesystem::read_symlink(network));
    EXPECT_GT(num_processes_in(networks.back()), 0u);
  }
  testbed.down();
  EXPECT_FALSE(std::filesystem::exists(testbed.state()));
  for (const std::string& network : networks) EXPECT_EQ(num_processes_in(network), 0u);
}

TEST(Testbed, AFacilityHasItsOwnFileSystem) {
  Testbed testbed({"alba"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  const Facility& alba = testbed.facility("alba");
  TempDir ours;
  EXPECT_EQ(alba.exec_as_user({"ls", XFFL_SOURCE_DIR "/CMakeLists.txt"}).exit_code, 0);
  EXPECT_NE(alba.exec_on_login({"ls", ours.path().string()}).exit_code, 0);
  EXPECT_NE(alba.exec_on_login({"touch", XFFL_SOURCE_DIR "/made-by-a-facility"}).exit_code, 0);
  EXPECT_EQ(alba.exec_on_login({"touch", "/made-by-a-facility"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists("/made-by-a-facility"));
  EXPECT_EQ(alba.exec_as_user({"id", "-un"}).out, alba.user + "\n");
}

TEST(Testbed, ACutLinkDropsPacketsUntilItHeals) {
  Testbed testbed({"alba"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  const Facility& alba = testbed.facility("alba");
  alba.wan(20, 0, 0);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(ssh(alba, {"true"}).exit_code, 0);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(200));
  alba.cut();
  const ProcessResult tried =
      run_process({.argv = {"bash", "-c", "exec 3<>/dev/tcp/" + alba.host + "/22"},
                   .timeout = std::chrono::seconds(2)});
  EXPECT_TRUE(tried.timed_out) << tried.err;
  alba.heal();
  EXPECT_EQ(ssh(alba, {"true"}).exit_code, 0);
  alba.wan_off();
  EXPECT_EQ(ssh(alba, {"true"}).exit_code, 0);
}

TEST(Testbed, NodesAndDaemonsStopAndRestart) {
  Testbed testbed({"alba"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  const Facility& alba = testbed.facility("alba");
  alba.stop_daemon("slurmctld", "KILL");
  EXPECT_TRUE(alba.pids("slurmctld").empty());
  alba.start_daemon("slurmctld");
  alba.node_down(2);
  EXPECT_TRUE(alba.pids("slurmd:2").empty());
  EXPECT_EQ(alba.pids("slurmd:1").size(), 1u);
  alba.node_up(2);
  EXPECT_EQ(alba.pids("slurmd:2").size(), 1u);
  alba.stop_daemon("sshd");
  EXPECT_NE(ssh(alba, {"true"}).exit_code, 0);
  alba.start_daemon("sshd");
  EXPECT_EQ(ssh(alba, {"true"}).exit_code, 0);
  alba.change_host_key();
  EXPECT_NE(ssh(alba, {"true"}).err.find("IDENTIFICATION HAS CHANGED"), std::string::npos);
}

TEST(Testbed, FlavoursHaveTheirEffects) {
  Testbed testbed({"alba"}, {"--mover", "--scratch-mb", "4", "--noisy", "--max-sessions", "1"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  const Facility& alba = testbed.facility("alba");
  const ProcessResult noisy = ssh(alba, {"echo", "answer"});
  EXPECT_NE(noisy.out, "answer\n");
  EXPECT_NE(noisy.out.find("answer\n"), std::string::npos);
  const ProcessResult mover = ssh(alba, {"true"}, "", alba.mover);
  EXPECT_NE(mover.exit_code, 0);
  EXPECT_NE(mover.out.find("sftp connections only"), std::string::npos) << mover.out << mover.err;
  const ProcessResult full = alba.exec_as_user({"cp", "/dev/zero", "/scratch/file"});
  EXPECT_NE(full.err.find("No space left"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(alba.certified_key.string() + "-cert.pub"));
  alba.certify("+1m");
  EXPECT_TRUE(std::filesystem::exists(alba.certified_key.string() + "-cert.pub"));
}

}  // namespace
}  // namespace xffl::test
