#include "backend_group.h"

#include <torch/types.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "host_group.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::comm {
namespace {

// The pause between two polls of the store. A thousand ranks poll the store ten thousand times a
// second.
constexpr std::chrono::microseconds kShortestPause{200}, kLongestPause{100'000};

// c10's message without its stack trace, in one line: NCCL's message is not in the first line.
std::string cause(const char* text) {
  constexpr size_t kLongest = 600;
  std::string message(text);
  for (const char* trace : {"Exception raised from ", "\nframe #"})
    message.resize(std::min(message.size(), message.find(trace)));
  while (!message.empty() && std::isspace(static_cast<unsigned char>(message.back())))
    message.pop_back();
  std::replace(message.begin(), message.end(), '\n', ' ');
  message.resize(std::min(message.size(), kLongest));
  return message;
}

// Calls `body` and turns an exception of c10d or Gloo into kFailed. The message names the rank, the
// operation `doing` and the likely reason `why` (by default another rank's death).
void translate_errors(const Rendezvous& rendezvous, std::string_view doing,
                      const std::function<void()>& body, std::string why = "") {
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (why.empty()) why = "a rank died, or was late";
    throw Error(
        ErrorKind::kFailed,
        "rank " + std::to_string(rendezvous.rank) + " of " + std::to_string(rendezvous.world_size) +
            ", " + std::string(doing) + ": " + cause(error.what()) + " (" + why +
            " by more than XFFL_COMM_TIMEOUT=" + std::to_string(rendezvous.timeout.count()) +
            " s: look at the other ranks' output)");
  }
}

class SingleRank final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "single"; }
  void all_reduce(at::Tensor) override {}
  Pending start_all_gather(at::Tensor all_WS, at::Tensor mine_S) override {
    copy(all_WS, mine_S);
    return {};
  }
  Pending start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) override {
    copy(mine_S, all_WS);
    return {};
  }
  Pending start_send(at::Tensor, int) override { return throw_no_peer(); }
  Pending start_receive(at::Tensor, int) override { return throw_no_peer(); }
  void barrier() override {}
  void wait_for_first() override {}
  std::unique_ptr<Group> split(const std::vector<int>&, const std::string&) override {
    return make_single_rank();
  }

 private:
  static Pending throw_no_peer() {
    throw Error(ErrorKind::kInternal, "comm: a single rank has no peer to send to");
  }
  // Aliased tensors need no copy.
  static void copy(at::Tensor& to, const at::Tensor& from) {
    if (to.data_ptr() != from.data_ptr()) to.copy_(from.view_as(to));
  }
};

}  // namespace

BackendGroup::BackendGroup(BackendMaker maker, c10::intrusive_ptr<c10d::Store> store,
                           Rendezvous rendezvous)
    : maker_(std::move(maker)),
      store_(std::move(store)),
      rendezvous_(std::move(rendezvous)),
      errors_at_birth_(std::uncaught_exceptions()) {
  translate_errors(rendezvous_, "connecting by " + maker_.name, [&] {
    backend_ = maker_.connect(store_, rendezvous_.rank, rendezvous_.world_size);
  });
  // Gloo connects a rank before its peer notices: the peer's attempt would fail if the rank
  // disconnected now. NCCL connects at the first collective.
  if (maker_.device.is_cpu()) barrier();
}

BackendGroup::~BackendGroup() {
  // Without a shutdown c10d aborts, and a peer may lose data that the peer still receives.
  if (std::uncaught_exceptions() > errors_at_birth_) return;
  try {
    backend_->shutdown();
  } catch (const std::exception& error) {
    log::warning("group shutdown failed", {{"group", maker_.name}, {"error", cause(error.what())}});
  }
}

void BackendGroup::all_reduce(at::Tensor tensor) {
  translate_errors(rendezvous_, "summing over ranks", [&] {
    std::vector<at::Tensor> tensors{tensor};
    backend_->allreduce(tensors)->wait();
  });
}

Pending BackendGroup::start(std::string_view doing, const std::function<Work()>& body,
                            std::function<void()> then) {
  Work work;
  translate_errors(rendezvous_, doing, [&] { work = body(); });
  return Pending([this, work, then = std::move(then), what = std::string(doing)] {
    translate_errors(rendezvous_, what, [&] { work->wait(); });
    if (then) then();
  });
}

Pending BackendGroup::start_all_gather(at::Tensor all_WS, at::Tensor mine_S) {
  return start("gathering from ranks", [&] { return backend_->_allgather_base(all_WS, mine_S); });
}

Pending BackendGroup::start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) {
  if (maker_.sums_here) return exchange_and_sum(std::move(mine_S), std::move(all_WS));
  return start("reducing and scattering",
               [&] { return backend_->_reduce_scatter_base(mine_S, all_WS); });
}

at::Tensor BackendGroup::borrow_like(const at::Tensor& tensor) {
  for (at::Tensor& spare : spare_) {
    if (spare.numel() != tensor.numel() || spare.scalar_type() != tensor.scalar_type()) continue;
    const at::Tensor found = std::move(spare);
    spare = std::move(spare_.back());
    spare_.pop_back();
    return found;
  }
  return at::empty({tensor.numel()}, tensor.options());
}

Pending BackendGroup::exchange_and_sum(at::Tensor mine_S, at::Tensor all_WS) {
  const at::Tensor received_WS = borrow_like(all_WS);
  std::vector<int64_t> even;
  return start(
      "reducing and scattering",
      [&, output = received_WS]() mutable {
        return backend_->alltoall_base(output, all_WS, even, even);
      },
      [this, mine_S, received_WS, all_WS]() mutable {
        const at::Tensor parts = received_WS.view({size(), -1});
        // Round a 16-bit sum once, not for each rank.
        const bool is_narrow = at::isReducedFloatingType(mine_S.scalar_type());
        const at::Tensor sum_S = is_narrow ? parts[0].to(at::kFloat) : mine_S;
        if (!is_narrow) sum_S.copy_(parts[0]);
        for (int rank = 1; rank < size(); ++rank) sum_S.add_(parts[rank]);
        if (is_narrow) mine_S.copy_(sum_S);
        spare_.push_back(received_WS);
      });
}

Pending BackendGroup::start_send(at::Tensor tensor, int to) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return start("sending", [&] { return backend_->send(tensors, to, 0); });
}

Pending BackendGroup::start_receive(at::Tensor tensor, int from) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return start("receiving", [&] { return backend_->recv(tensors, from, 0); });
}

std::unique_ptr<Group> BackendGroup::split(const std::vector<int>& members,
                                           const std::string& name) {
  const auto mine = std::find(members.begin(), members.end(), rank());
  if (mine == members.end() || !std::is_sorted(members.begin(), members.end()))
    throw Error(ErrorKind::kInternal, "comm: group " + name + " does not hold this rank");
  if (members.size() == 1) return make_single_rank();
  // Disjoint groups may share a name: their first members distinguish them.
  const std::string prefix = name + "/" + std::to_string(members.front());
  Rendezvous rendezvous = rendezvous_;
  rendezvous.rank = static_cast<int>(mine - members.begin());
  rendezvous.world_size = static_cast<int>(members.size());
  return std::make_unique<BackendGroup>(
      maker_, c10::make_intrusive<c10d::PrefixStore>(prefix, store_), rendezvous);
}

// Rank 0's process holds the store of a job, so a failed query means that the process has ended.
// The store's wait() would block its connection, which c10d's watchdog uses, too.
void BackendGroup::wait_for_first() {
  const std::string key = "arrived/" + std::to_string(waits_++);
  translate_errors(rendezvous_, "waiting for the first rank", [&] {
    if (rank() == 0) return store_->set(key, std::vector<uint8_t>{1});
    auto pause = kShortestPause;
    while (!store_->check({key})) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 5 / 4, kLongestPause);
    }
  });
}

void BackendGroup::barrier() {
  const at::Tensor one =
      at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(maker_.device));
  all_reduce(one);
  one.item<float>();  // until now only a GPU's stream has waited, not this thread
}

void BackendGroup::self_test() {
  const int64_t ranks = size();
  const double expected = static_cast<double>(ranks * (ranks + 1)) / 2;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16}) {
    // bfloat16 is exact for integers up to 256 only.
    const double unit = dtype == at::kBFloat16 ? 1.0 : static_cast<double>(rank() + 1);
    const double sum = dtype == at::kBFloat16 ? static_cast<double>(ranks) : expected;
    if (dtype == at::kBFloat16 && ranks > 256) continue;
    at::Tensor numbers =
        at::full({5}, unit, at::TensorOptions().dtype(dtype).device(maker_.device));
    all_reduce(numbers);
    if (!numbers.eq(sum).all().item<bool>()) {
      throw Error(ErrorKind::kUnsupported,
                  "the self-test of " + maker_.name + " failed: a sum of " + std::to_string(ranks) +
                      " ranks in " + at::toString(dtype) +
                      " is wrong; this LibTorch does not match the headers that xffl was built "
                      "with: rebuild with LibTorch 2.11.0");
    }
  }
}

Store connect_store(const Rendezvous& rendezvous) {
  Store store;
  const std::string where =
      rendezvous.master_address + ":" + std::to_string(rendezvous.master_port);
  translate_errors(
      rendezvous, "rendezvous with the other ranks at " + where,
      [&] {
        c10d::TCPStoreOptions options;
        options.port = static_cast<uint16_t>(rendezvous.master_port);
        options.isServer = rendezvous.rank == 0;
        options.numWorkers = static_cast<size_t>(rendezvous.world_size);
        options.timeout = rendezvous.timeout;
        store = c10::make_intrusive<c10d::TCPStore>(rendezvous.master_address, options);
      },
      rendezvous.rank == 0
          ? "another program uses the port: choose another MASTER_PORT; or a rank was late"
          : "rank 0 does not answer: check that MASTER_ADDR and MASTER_PORT name its machine; or "
            "it was late");
  return store;
}

// Rank 0 counts, so that the store answers each other rank once.
int ranks_per_device(const Store& store, const Rendezvous& rendezvous,
                     const std::string& device_name) {
  const auto key = [](int rank) { return "device/" + std::to_string(rank); };
  const auto text_of = [&](const std::string& name) {
    const std::vector<uint8_t> bytes = store->get(name);
    return std::string(bytes.begin(), bytes.end());
  };
  int most = 1;
  translate_errors(rendezvous, "comparing GPUs with the other ranks", [&] {
    store->set(key(rendezvous.rank), std::vector<uint8_t>(device_name.begin(), device_name.end()));
    if (rendezvous.rank == 0) {
      std::map<std::string, int> ranks;
      for (int rank = 0; rank < rendezvous.world_size; ++rank)
        most = std::max(most, ++ranks[text_of(key(rank))]);
      const std::string text = std::to_string(most);
      store->set("ranks_per_device", std::vector<uint8_t>(text.begin(), text.end()));
    }
    most = std::stoi(text_of("ranks_per_device"));
  });
  return most;
}

std::unique_ptr<Group> make_backend_group(BackendMaker maker, const Rendezvous& rendezvous,
                                          Store store) {
  if (!store) store = connect_store(rendezvous);
  auto group = std::make_unique<BackendGroup>(std::move(maker), std::move(store), rendezvous);
  group->self_test();
  return group;
}

std::unique_ptr<Group> make_gloo(const Rendezvous& rendezvous, Store store) {
  return make_backend_group(gloo_maker(rendezvous), rendezvous, std::move(store));
}

std::unique_ptr<Group> make_single_rank() { return std::make_unique<SingleRank>(); }

std::unique_ptr<Group> make_group(const Rendezvous& rendezvous, at::Device device,
                                  const std::string& device_name) {
  if (rendezvous.world_size == 1) return make_single_rank();
  if (!device.is_cuda()) return make_gloo(rendezvous);
  Store store = connect_store(rendezvous);
  const int sharing = device_name.empty() ? 1 : ranks_per_device(store, rendezvous, device_name);
  if (sharing == 1) return make_nccl(rendezvous, device, std::move(store));
  if (rendezvous.rank == 0)
    log::warning("ranks share a GPU: they exchange by Gloo through the host's memory, not by NCCL",
                 {{"ranks_per_gpu", sharing}, {"ranks", rendezvous.world_size}});
  return std::make_unique<HostGroup>(make_gloo(rendezvous, std::move(store)), device, sharing);
}

}  // namespace xffl::comm
