// The properties of c10d's ProcessGroupNCCL on which the contract of Group depends (read in
// LibTorch 2.11):
//
// An operation runs on the communicator's own stream, after all earlier work of the current stream.
// wait() makes the current stream wait for the operation and returns at once. The operation keeps
// its tensors alive until wait(), so a Pending needs no record_stream before its wait(). Each split
// has its own communicator and stream: gathers and reductions overtake each other. NCCL sums in its
// own order, which is the same in each run on the same machines.
//
// c10d's watchdog thread detects an operation that exceeds the time-out, or whose peer died. The
// thread logs the operation and ends the process by SIGABRT; srun then ends the other ranks.
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "backend_group.h"

namespace xffl::comm {

bool has_nccl() { return true; }
std::string nccl_version() { return c10d::getNcclVersion(); }

std::unique_ptr<Group> make_nccl(const Rendezvous& rendezvous, at::Device device, Store joined) {
  BackendMaker maker{"nccl", device, nullptr, false};
  maker.connect = [rendezvous, device](c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = rendezvous.timeout;
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
    backend->setBoundDeviceId(device);
    // The first collective would connect, too. Here all members are present, and errors name the
    // rendezvous.
    backend->eagerConnectSingleDevice(device);
    return backend;
  };
  return make_backend_group(std::move(maker), rendezvous, std::move(joined));
}

}  // namespace xffl::comm
