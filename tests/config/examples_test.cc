#include <gtest/gtest.h>

#include "xffl/base/error.h"
#include "xffl/config/load.h"

namespace xffl::config {
namespace {

namespace fs = std::filesystem;

TEST(Examples, EveryShippedExperimentIsValid) {
  int count = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(fs::path(XFFL_SOURCE_DIR) / "configs")) {
    if (entry.path().filename() != "xffl.yaml") continue;
    ++count;
    EXPECT_NO_THROW(load_experiment(entry.path().parent_path())) << entry.path();
  }
  EXPECT_GE(count, 4);
}

// The training state of 8 billion parameters, 18 bytes each, fits on no GPU.
TEST(Examples, AModelOf8BillionParametersIsSharded) {
  const auto experiment =
      load_experiment(fs::path(XFFL_SOURCE_DIR) / "configs/examples/two-supercomputers");
  for (const Facility& facility : experiment.facilities)
    EXPECT_EQ(facility.training.sharding, job::Sharding::kFull) << facility.name.str();
}

}  // namespace
}  // namespace xffl::config
