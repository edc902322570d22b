#include "xffl/train/environment.h"

#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/resources.h"
#include "xffl/train/device.h"

namespace xffl::train {
namespace {

TEST(Environment, DriverVersionIsReadFromTheModulesFile) {
  const test::TempDir dir;
  const auto version = [&](const std::string& text) {
    write_file_atomic(dir / "version", text);
    return driver_version(dir / "version");
  };
  EXPECT_EQ(version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.274.02  Mon Sep 15\n"),
            "535.274.02");
  EXPECT_EQ(
      version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n"),
      "580.65.06");
  EXPECT_EQ(version("GCC version: 12\n"), "");
  EXPECT_EQ(version("NVRM version: NVIDIA UNIX Kernel Module\n"), "");
  EXPECT_EQ(driver_version(dir / "absent"), "");
}

TEST(Environment, DescribesThisMachine) {
  const job::TrainerEnvironment found = trainer_environment();
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  EXPECT_EQ(found.host, host);
  EXPECT_GE(found.cpus, 1);
  EXPECT_GT(found.memory_bytes, 0);
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    EXPECT_EQ(found.shm_bytes, static_cast<int64_t>(shm.f_blocks * shm.f_frsize));
  }
  EXPECT_EQ(found.torch.substr(0, 2), "2.");
}

TEST(Environment, PeakMemoryIsInBytes) {
  const at::Tensor held = at::ones({16 << 20}, at::kFloat);
  EXPECT_GE(peak_memory_bytes(at::kCPU), 64 << 20);
  EXPECT_EQ(held.nbytes(), size_t{64} << 20);
}

TEST(Environment, RanksShareTheCpusUnlessAVariableCountsThem) {
  using Variables = std::map<std::string, std::string>;
  const auto threads = [](int wanted, int ranks, const Variables& variables) {
    comm::Rendezvous rendezvous;
    rendezvous.local_world_size = ranks;
    const auto value_of = [&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    return choose_threads(wanted, rendezvous, value_of);
  };
  const int cpus = available_cpus();
  const Variables both{{"OMP_NUM_THREADS", "5"}, {"SLURM_CPUS_PER_TASK", "1"}};
  EXPECT_EQ(threads(3, 2, both), 3);
  EXPECT_EQ(threads(0, 2, both), 5);
  EXPECT_EQ(threads(0, 1, {{"SLURM_CPUS_PER_TASK", "1"}}), 1);
  EXPECT_EQ(threads(0, cpus, {{"SLURM_CPUS_PER_TASK", std::to_string(cpus + 1)}}), cpus);
  EXPECT_EQ(threads(0, 1, {}), cpus);
  EXPECT_EQ(threads(0, 1, {{"OMP_NUM_THREADS", "all"}}), cpus);
  EXPECT_EQ(threads(0, cpus, {}), 1);
  EXPECT_EQ(threads(0, cpus + 1, {}), 1) << "more ranks than CPUs";
}

TEST(Environment, InterfacesAreUpAndNotLoopback) {
  for (const NetworkInterface& each : network_interfaces()) {
    EXPECT_NE(each.name, "lo");
    EXPECT_TRUE(std::filesystem::exists("/sys/class/net/" + each.name)) << each.name;
    EXPECT_EQ(std::count(each.addresses.begin(), each.addresses.end(), "127.0.0.1"), 0);
  }
}

}  // namespace
}  // namespace xffl::train
