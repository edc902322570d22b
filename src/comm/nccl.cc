#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "backend_group.h"
#include "backends.h"

namespace xffl::comm {

bool has_nccl() { return true; }

std::unique_ptr<Group> make_nccl(const Rendezvous& rendezvous, at::Device device) {
  BackendMaker maker{"nccl", device, nullptr, false};
  maker.connect = [rendezvous, device](c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = rendezvous.timeout;
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
    backend->setBoundDeviceId(device);
    return backend;
  };
  auto group = std::make_unique<BackendGroup>(std::move(maker), meet(rendezvous), rendezvous);
  group->self_test();
  return group;
}

}  // namespace xffl::comm
