// The settings of a job of one task, such as a tokenization, from those of a training.
#include <gtest/gtest.h>

#include "xffl/submit/queue_manager.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

TEST(OneTask, HasTheProcessorsOfANodeTogether) {
  QueueSettings settings("slurm");
  SlurmSettings& slurm = settings.as<SlurmSettings>();
  slurm.nodes = 4;
  slurm.tasks_per_node = 3;
  slurm.cpus_per_task = 8;
  slurm.gpus_per_node = 3;
  slurm.account = "a";
  slurm.keep_allocation = std::chrono::hours(1);
  settings.manager().one_task(settings);
  EXPECT_EQ(slurm.nodes, 1);
  EXPECT_EQ(slurm.tasks_per_node, 1);
  EXPECT_EQ(slurm.cpus_per_task, 24);
  EXPECT_EQ(slurm.gpus_per_node, 3);
  EXPECT_EQ(slurm.account, "a");
  EXPECT_EQ(slurm.keep_allocation.count(), 0);
}

}  // namespace
}  // namespace xffl::submit
