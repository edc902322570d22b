// A Group over one of c10d's back ends, and the store of its rendezvous.
//
// Each back end has a file. For an absent back end CMake compiles a file that throws kUnsupported.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "xffl/comm/group.h"

namespace xffl::comm {

/// Makes the group of a back end, and its subgroups.
struct BackendMaker {
  std::string name;  // the group's name: "gloo", "nccl"
  at::Device device;
  /// Connects `size` ranks through `store`.
  std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                  int size)>
      connect;
  /// Whether a reduce-scatter exchanges the ranks' parts and sums them here, in the order of ranks.
  /// Gloo's own reduce-scatter is an all-reduce, which moves twice the bytes.
  bool sums_here = false;
};

class BackendGroup final : public Group {
 public:
  /// Connects to the other ranks. `rendezvous` has this group's rank and size. On a CPU each rank
  /// waits until all have connected, so any of them may destroy its group at once. Throws kFailed.
  BackendGroup(BackendMaker maker, c10::intrusive_ptr<c10d::Store> store, Rendezvous rendezvous);
  /// Finishes pending operations; aborts them during stack unwinding.
  ~BackendGroup() override;

  int rank() const override { return rendezvous_.rank; }
  int size() const override { return rendezvous_.world_size; }
  std::string name() const override { return maker_.name; }
  void all_reduce(at::Tensor tensor) override;
  Pending start_all_gather(at::Tensor all_WS, at::Tensor mine_S) override;
  Pending start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) override;
  Pending start_send(at::Tensor tensor, int to) override;
  Pending start_receive(at::Tensor tensor, int from) override;
  void barrier() override;
  void wait_for_first() override;
  std::unique_ptr<Group> split(const std::vector<int>& members, const std::string& name) override;

  /// Sums known numbers in every dtype. Throws kUnsupported if a sum is wrong.
  void self_test();

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  Pending start(std::string_view doing, const std::function<Work()>& body,
                std::function<void()> then = nullptr);
  Pending exchange_and_sum(at::Tensor mine_S, at::Tensor all_WS);
  at::Tensor borrow_like(const at::Tensor& tensor);

  BackendMaker maker_;
  c10::intrusive_ptr<c10d::Store> store_;
  Rendezvous rendezvous_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  int errors_at_birth_;
  int64_t waits_ = 0;              // calls of wait_for_first()
  std::vector<at::Tensor> spare_;  // buffers of finished exchanges
};

using Store = c10::intrusive_ptr<c10d::Store>;

/// Rank 0 listens at master_port, the other ranks connect. Throws kFailed.
Store connect_store(const Rendezvous& rendezvous);

/// The largest number of ranks that give the same device name; collective. Throws kFailed.
int ranks_per_device(const Store& store, const Rendezvous& rendezvous,
                     const std::string& device_name);

/// The maker of Gloo groups on CPUs. Throws kUnsupported if xffl was built without Gloo.
BackendMaker gloo_maker(const Rendezvous& rendezvous);

/// The group of all ranks, tested by self_test(). An empty `store` is connected first.
std::unique_ptr<Group> make_backend_group(BackendMaker maker, const Rendezvous& rendezvous,
                                          Store store);
std::unique_ptr<Group> make_gloo(const Rendezvous& rendezvous, Store store = {});
std::unique_ptr<Group> make_nccl(const Rendezvous& rendezvous, at::Device device, Store store = {});

}  // namespace xffl::comm
