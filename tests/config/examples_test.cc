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

}  // namespace
}  // namespace xffl::config
