// What c10d's ProcessGroupNCCL does, as far as our contract depends on it (read, LibTorch 2.11):
//
// An operation runs on a stream of the communicator's own, after all that the current stream held
// when it was started; wait() makes the current stream wait for it and returns at once. The work
// keeps its tensors alive until then, so a Pending that is waited for needs no record_stream. Each
// split has a communicator, and a stream, of its own: gathers and reductions pass each other.
// Sums are in NCCL's order, which is the same in each run on the same machines.
//
// An operation that takes longer than the timeout, or whose peer died, is noticed by c10d's
// watchdog thread: it logs which one, and ends the process by SIGABRT. srun then ends the other
// ranks.
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
    // Now rather than in the first collective: all members are here, and errors belong here.
    backend->eagerConnectSingleDevice(device);
    return backend;
  };
  auto group = std::make_unique<BackendGroup>(std::move(maker), meet(rendezvous), rendezvous);
  group->self_test();
  return group;
}

}  // namespace xffl::comm
