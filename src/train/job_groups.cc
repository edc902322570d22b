#include "job_groups.h"

#include <string>
#include <vector>

#include "xffl/base/error.h"

namespace xffl::train {

JobGroups::JobGroups(comm::Group& world, int64_t count) : world_(world) {
  if (count < 1 || world.size() % count != 0) {
    throw Error(ErrorKind::kConfig, "training.groups.count is " + std::to_string(count) +
                                        ", which does not divide the " +
                                        std::to_string(world.size()) + " ranks of this job");
  }
  const int size = world.size() / static_cast<int>(count);
  const int group = world.rank() / size;
  std::vector<int> mine, peers;
  for (int i = 0; i < size; ++i) mine.push_back(group * size + i);
  for (int i = 0; i < count; ++i) peers.push_back(i * size + world.rank() % size);
  if (count > 1) inner_ = world.split(mine, "group");
  across_ = count > 1 ? world.split(peers, "across") : comm::make_single_rank();
}

}  // namespace xffl::train
