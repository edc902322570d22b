#include "xffl/base/resources.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <thread>

#include "support/temp_dir.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

TEST(AvailableCpus, IsTheSizeOfTheAffinityMask) {
  EXPECT_GE(available_cpus(), 1);
  std::thread([] {
    cpu_set_t all, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) ++cpu;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);  // affects this thread only
    EXPECT_EQ(available_cpus(), 1);
  }).join();
}

TEST(CpuQuota, IsTheSmallestQuotaOfTheControlGroupAndItsAncestors) {
  test::TempDir dir;
  make_dirs(dir / "a/b/c");
  EXPECT_EQ(cpu_quota(dir.path(), "/a/b/c"), 0);
  write_file_atomic(dir / "cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(dir.path(), "/a/b/c"), 0);
  write_file_atomic(dir / "a/cpu.max", "250000 100000\n");
  write_file_atomic(dir / "a/b/c/cpu.max", "400000 100000\n");
  EXPECT_EQ(cpu_quota(dir.path(), "/a/b/c"), 3);
  write_file_atomic(dir / "a/b/c/cpu.max", "5000 100000\n");
  EXPECT_EQ(cpu_quota(dir.path(), "/a/b/c"), 1);
  EXPECT_EQ(cpu_quota(dir.path(), "/a/other"), 3);
  EXPECT_EQ(cpu_quota(dir.path(), "/"), 0);
}

TEST(AvailableMemory, IsAtMostTheMachinesMemory) {
  std::ifstream text("/proc/meminfo");
  std::string word;
  int64_t total_kilobytes = 0;
  ASSERT_TRUE(text >> word >> total_kilobytes && word == "MemTotal:");
  EXPECT_GT(available_memory(), total_kilobytes) << "in bytes: a thousandth of the memory";
  EXPECT_LE(available_memory(), total_kilobytes * 1024);
}

TEST(MemoryLeftInGroups, IsTheLeastOfAllAncestorsInCgroupV2) {
  const test::TempDir dir;
  make_dirs(dir / "slurm/job/step");
  const std::string groups = "0::/slurm/job/step\n";
  EXPECT_FALSE(memory_left_in_groups(dir.path(), groups));
  write_file_atomic(dir / "slurm/job/step/memory.max", "max\n");
  write_file_atomic(dir / "slurm/job/step/memory.current", "700\n");
  EXPECT_FALSE(memory_left_in_groups(dir.path(), groups));
  write_file_atomic(dir / "slurm/job/memory.max", "5000\n");
  write_file_atomic(dir / "slurm/job/memory.current", "1000\n");
  EXPECT_EQ(memory_left_in_groups(dir.path(), groups), 4000);
  write_file_atomic(dir / "slurm/job/memory.stat",
                    "anon 300\ninactive_file 400\nactive_file 200\nslab 5\n");
  EXPECT_EQ(memory_left_in_groups(dir.path(), groups), 4600);
  write_file_atomic(dir / "slurm/memory.max", "900\n");
  EXPECT_EQ(memory_left_in_groups(dir.path(), groups), 900);
  write_file_atomic(dir / "slurm/memory.current", "1000\n");
  EXPECT_EQ(memory_left_in_groups(dir.path(), groups), 0);
  EXPECT_FALSE(memory_left_in_groups(dir.path(), "0::/elsewhere\n"));
}

TEST(MemoryLeftInGroups, IsTheLeastOfAllAncestorsInCgroupV1) {
  const test::TempDir dir;
  make_dirs(dir / "memory/uid/job");
  const std::string groups = "12:cpuset:/other\n7:cpu,memory:/uid/job\n0::/user.slice\n";
  EXPECT_FALSE(memory_left_in_groups(dir.path(), groups));
  write_file_atomic(dir / "memory/uid/job/memory.limit_in_bytes", "9223372036854775807\n");
  EXPECT_FALSE(memory_left_in_groups(dir.path(), groups));
  write_file_atomic(dir / "memory/uid/memory.limit_in_bytes", "8000\n");
  write_file_atomic(dir / "memory/uid/memory.usage_in_bytes", "3000\n");
  write_file_atomic(dir / "memory/uid/memory.stat", "inactive_file 1\ntotal_inactive_file 2000\n");
  EXPECT_EQ(memory_left_in_groups(dir.path(), groups), 7000);
}

}  // namespace
}  // namespace xffl
