// The ranks of a job in groups of neighbours, each of which trains a model of its own between two
// exchanges.
#pragma once

#include <memory>

#include "xffl/comm/group.h"

namespace xffl::train {

class JobGroups {
 public:
  /// Collective over `world`, which must outlive this object. Throws kConfig unless `count` divides
  /// its ranks.
  JobGroups(comm::Group& world, int64_t count);

  int count() const { return across().size(); }
  /// This rank's group, from 0.
  int index() const { return across().rank(); }
  /// The ranks of this rank's group; the world itself when there is one group.
  comm::Group& inner() const { return inner_ == nullptr ? world_ : *inner_; }
  /// The ranks that have this rank's place in their groups, in the order of the groups.
  comm::Group& across() const { return *across_; }

 private:
  comm::Group& world_;
  std::unique_ptr<comm::Group> inner_, across_;
};

}  // namespace xffl::train
