// Divides the ranks of a job into groups of neighbours. Each group trains its own model between two
// exchanges (local SGD).
#pragma once

#include <memory>

#include "xffl/comm/group.h"

namespace xffl::train {

class JobGroups {
 public:
  /// Collective over `world`, which must outlive this object. Throws kConfig unless `count` divides
  /// the world size.
  JobGroups(comm::Group& world, int64_t count);

  int count() const { return across().size(); }
  /// The index of this rank's group.
  int index() const { return across().rank(); }
  /// The ranks of this rank's group; the world if there is one group.
  comm::Group& inner() const { return inner_ == nullptr ? world_ : *inner_; }
  /// The ranks with the same index in their groups, in the order of the groups.
  comm::Group& across() const { return *across_; }

 private:
  comm::Group& world_;
  std::unique_ptr<comm::Group> inner_, across_;
};

}  // namespace xffl::train
