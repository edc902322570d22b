// The back ends behind make_group, one file each; an absent one throws kUnsupported.
#pragma once

#include <memory>

#include "xffl/comm/group.h"

namespace xffl::comm {

std::unique_ptr<Group> make_gloo(const Rendezvous& rendezvous);
std::unique_ptr<Group> make_nccl(const Rendezvous& rendezvous, at::Device device);

}  // namespace xffl::comm
