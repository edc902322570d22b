// The texts are those of NVIDIA's kernel modules, the closed and the open one.
#include "xffl/train/gpu_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <cstdlib>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/train/device.h"

namespace xffl::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kOld =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.274.02  Mon Sep 15 20:34:12 UTC 2025\n"
    "GCC version:  gcc version 8.5.0 20210514 (Red Hat 8.5.0-10) (GCC)\n";
constexpr const char* kNew =
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.82.07  Release Build  "
    "(dvs-builder@U22)\nGCC version:  gcc version 12.3.0\n";

class GpuDriver : public testing::Test {
 protected:
  std::string problem(int cuda_version, const std::string& text) {
    write_file_atomic(file_, text);
    return driver_problem(cuda_version, file_);
  }
  test::TempDir dir_;
  std::filesystem::path file_ = dir_ / "version";
};

TEST_F(GpuDriver, AnOldOneIsNamedWithTheRemedies) {
  const std::string found = problem(13000, kOld);
  EXPECT_THAT(found, HasSubstr("this node's GPU driver is 535.274.02, and this xffl-train (CUDA "
                               "13.0) needs 580 or newer: set facilities.F.cuda_compat"));
  utsname machine{};
  ASSERT_EQ(::uname(&machine), 0);
  const bool has_cu128 = std::string(machine.machine) == "x86_64";
  EXPECT_THAT(found, HasSubstr(has_cu128 ? "the flavour cu128 there" : "the flavour cpu there"));
  EXPECT_EQ(problem(12080, kOld), "");
  EXPECT_EQ(problem(13000, kNew), "");
  std::string edge = kNew;
  edge.replace(edge.find("580.82.07"), 9, "579.99.99");
  EXPECT_THAT(problem(13000, edge), HasSubstr("579.99.99"));
  EXPECT_THAT(problem(12040, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  x\n"),
              AllOf(HasSubstr("(CUDA 12.4) needs 525"), HasSubstr("the flavour cpu there")));
}

TEST_F(GpuDriver, AnUnknownOneIsNoProblem) {
  EXPECT_EQ(driver_problem(13000, dir_ / "absent"), "");
  EXPECT_EQ(driver_problem(13000, dir_.path()), "");
  EXPECT_EQ(problem(0, kOld), "") << "a build without CUDA";
  for (const std::string& text :
       {std::string(), std::string("GCC version:  gcc version 8.5.0\n"), std::string(1 << 20, '1'),
        "NVRM version: " + std::string(100'000, ' ') + "535.1 \n",
        std::string("NVRM version: 99999999999999999999.1 \n")})
    EXPECT_EQ(problem(13000, text), "") << text.substr(0, 60);
}

TEST_F(GpuDriver, StopsAJobBeforeItTrainsOnTheCpu) {
  write_file_atomic(file_, kOld);
  ASSERT_EQ(::setenv("XFFL_DRIVER_VERSION_FILE", file_.c_str(), 1), 0);
  if (kernels::gpu::cuda_version() == 0) {
    EXPECT_EQ(choose_device("auto", 0), at::Device(at::kCPU)) << "a build for CPUs does not care";
  } else if (kernels::gpu::device_count() == 0) {
    EXPECT_THAT(test::message_of(ErrorKind::kUnsupported, [] { choose_device("auto", 0); }),
                HasSubstr("535.274.02"));
    EXPECT_EQ(choose_device("cpu", 0), at::Device(at::kCPU));
  }
  ::unsetenv("XFFL_DRIVER_VERSION_FILE");
}

TEST_F(GpuDriver, AJobForAGpuNeverTrainsOnTheCpu) {
  if (kernels::gpu::device_count() > 0) GTEST_SKIP() << "a GPU is visible here";
  EXPECT_THAT(test::message_of(ErrorKind::kUnsupported, [] { choose_device("cuda", 0); }),
              HasSubstr("--device cuda"));
}

}  // namespace
}  // namespace xffl::train
