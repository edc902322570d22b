#include "backend_group.h"

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "xffl/base/error.h"

namespace xffl::comm {
namespace {

// The first line: c10 appends a stack trace.
std::string first_line(const char* text) {
  const std::string all(text);
  return all.substr(0, all.find('\n'));
}

}  // namespace

void translate_errors(const Rendezvous& rendezvous, std::string_view doing,
                      const std::function<void()>& body) {
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(
        ErrorKind::kFailed,
        "rank " + std::to_string(rendezvous.rank) + " of " + std::to_string(rendezvous.world_size) +
            ", " + std::string(doing) + ": " + first_line(error.what()) +
            " (a rank died, or was late by more than XFFL_COMM_TIMEOUT=" +
            std::to_string(rendezvous.timeout.count()) + " s: look at the other ranks' output)");
  }
}

c10::intrusive_ptr<c10d::Store> meet(const Rendezvous& rendezvous) {
  c10::intrusive_ptr<c10d::Store> store;
  const std::string where =
      rendezvous.master_address + ":" + std::to_string(rendezvous.master_port);
  translate_errors(rendezvous, "meeting the other ranks at " + where, [&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(rendezvous.master_port);
    options.isServer = rendezvous.rank == 0;
    options.numWorkers = static_cast<size_t>(rendezvous.world_size);
    options.timeout = rendezvous.timeout;
    store = c10::make_intrusive<c10d::TCPStore>(rendezvous.master_address, options);
  });
  return store;
}

void BackendGroup::all_reduce(at::Tensor tensor) {
  translate_errors(rendezvous_, "summing over ranks", [&] {
    std::vector<at::Tensor> tensors{tensor};
    backend_->allreduce(tensors)->wait();
  });
}

void BackendGroup::broadcast(at::Tensor tensor, int root) {
  translate_errors(rendezvous_, "broadcasting", [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{tensor};
    backend_->broadcast(tensors, options)->wait();
  });
}

void BackendGroup::all_gather(at::Tensor all_WS, at::Tensor mine_S) {
  translate_errors(rendezvous_, "gathering from ranks",
                   [&] { backend_->_allgather_base(all_WS, mine_S)->wait(); });
}

void BackendGroup::reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) {
  translate_errors(rendezvous_, "reducing and scattering",
                   [&] { backend_->_reduce_scatter_base(mine_S, all_WS)->wait(); });
}

void BackendGroup::barrier() {
  all_reduce(at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device_)));
}

void BackendGroup::self_test() {
  const int64_t ranks = size();
  const double expected = static_cast<double>(ranks * (ranks + 1)) / 2;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16}) {
    // bf16 holds integers exactly up to 256 only.
    const double unit = dtype == at::kBFloat16 ? 1.0 : static_cast<double>(rank() + 1);
    const double sum = dtype == at::kBFloat16 ? static_cast<double>(ranks) : expected;
    if (dtype == at::kBFloat16 && ranks > 256) continue;
    at::Tensor numbers = at::full({5}, unit, at::TensorOptions().dtype(dtype).device(device_));
    all_reduce(numbers);
    if (!numbers.eq(sum).all().item<bool>()) {
      throw Error(ErrorKind::kUnsupported,
                  "the self-test of " + name_ + " failed: a sum of " + std::to_string(ranks) +
                      " ranks in " + at::toString(dtype) +
                      " is wrong; this LibTorch does not match the headers that xffl was built "
                      "with: rebuild with LibTorch 2.11.0");
    }
  }
}

}  // namespace xffl::comm
