// The energy of a GPU by a stand-in for NVIDIA's library: no GPU is needed.
#include "gpu_energy.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "support/temp_dir.h"
#include "xffl/base/file.h"

namespace xffl::train {
namespace {

class GpuEnergyTest : public testing::Test {
 protected:
  GpuEnergyTest() {
    ::setenv("XFFL_NVML_LIBRARY", XFFL_BINARY_DIR "/bin/xffl-fake-nvml.so", 1);
    ::setenv("FAKE_NVML", (dir_ / "state").c_str(), 1);
  }
  ~GpuEnergyTest() override {
    ::unsetenv("XFFL_NVML_LIBRARY");
    ::unsetenv("FAKE_NVML");
  }
  void set_counter(const std::string& millijoules, const std::string& mig = "0") const {
    write_file_atomic(dir_ / "state", millijoules + " " + mig);
  }
  static constexpr const char* kAddress = "0000:3b:00.0";

  test::TempDir dir_;
};

TEST_F(GpuEnergyTest, IsTheDifferenceOfTwoCounts) {
  set_counter("9000000000000");
  const GpuEnergy energy(kAddress);
  set_counter("9000000012345");
  EXPECT_EQ(energy.joules(), 12);
}

TEST_F(GpuEnergyTest, IsAbsentWhenTheCounterBeganAnew) {
  set_counter("5000");
  const GpuEnergy energy(kAddress);
  set_counter("10");
  EXPECT_FALSE(energy.joules());
}

TEST_F(GpuEnergyTest, IsAbsentWithoutACounter) {
  const GpuEnergy none(kAddress);
  EXPECT_FALSE(none.joules());
  set_counter("5000");
  const GpuEnergy lost(kAddress);
  std::filesystem::remove(dir_ / "state");
  EXPECT_FALSE(lost.joules());
}

TEST_F(GpuEnergyTest, IsAbsentForAGpuInParts) {
  set_counter("5000", "1");
  const GpuEnergy energy(kAddress);
  set_counter("6000", "1");
  EXPECT_FALSE(energy.joules());
}

TEST_F(GpuEnergyTest, IsAbsentForAnotherGpuAndWithoutTheLibrary) {
  set_counter("5000");
  EXPECT_FALSE(GpuEnergy("0000:00:00.0").joules());
  ::setenv("XFFL_NVML_LIBRARY", (dir_ / "none.so").c_str(), 1);
  EXPECT_FALSE(GpuEnergy(kAddress).joules());
}

}  // namespace
}  // namespace xffl::train
