#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "backend_group.h"
#include "backends.h"

namespace xffl::comm {

bool has_nccl() { return true; }

std::unique_ptr<Group> make_nccl(const Rendezvous& rendezvous, at::Device device) {
  const c10::intrusive_ptr<c10d::Store> store = meet(rendezvous);
  std::unique_ptr<BackendGroup> group;
  translate_errors(rendezvous, "connecting by NCCL", [&] {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = rendezvous.timeout;
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rendezvous.rank,
                                                               rendezvous.world_size, options);
    backend->setBoundDeviceId(device);
    group = std::make_unique<BackendGroup>("nccl", std::move(backend), rendezvous, device);
  });
  group->self_test();
  return group;
}

}  // namespace xffl::comm
