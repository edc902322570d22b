// The check job's view of the facility; tests/e2e/ runs whole checks.
#include <gtest/gtest.h>

#include "xffl/facility/job_script.h"
#include "xffl/trial/trial.h"

namespace xffl::trial {
namespace {

TEST(NodePaths, AreThoseOfTheComputeNodes) {
  config::Facility facility;
  facility.workdir = RemotePath("/p/scratch/me");
  facility.compute_mounts = {"/p/scratch:/scratch", "/p/data"};
  facility.train_data = {"/p/data/it.xtk", "/p/scratch/me/it.xtk"};
  facility.validation = {{.name = "held out", .path = "/p/scratch/me/held_out.xtk"}};
  EXPECT_EQ(node_paths(facility),
            (std::vector<std::string>{"/scratch/me", "/p/data/it.xtk", "/scratch/me/it.xtk",
                                      "/scratch/me/held_out.xtk"}));
}

// The job script exports them as they are.
TEST(NodePaths, OfLibrariesAreNotTranslated) {
  config::Facility facility;
  facility.compute_mounts = {"/p/scratch:/scratch"};
  facility.library_path = {"/p/scratch/lib/libcxi.so.1", "/opt/fabric/lib"};
  facility.nccl_plugin = "/opt/ofi/libnccl-net.so";
  facility.cuda_compat = "/opt/cuda/compat";
  EXPECT_EQ(facility::site_libraries(facility),
            (std::vector<std::string>{"/p/scratch/lib/libcxi.so.1", "/opt/fabric/lib",
                                      "/opt/ofi/libnccl-net.so", "/opt/cuda/compat"}));
}

}  // namespace
}  // namespace xffl::trial
