#include "xffl/base/cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

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

}  // namespace
}  // namespace xffl
