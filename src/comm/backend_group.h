// A Group over one of c10d's back ends, and the store at which its ranks meet.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "xffl/comm/group.h"

namespace xffl::comm {

/// Rank 0 listens at master_port, the others connect. Throws kFailed.
c10::intrusive_ptr<c10d::Store> meet(const Rendezvous& rendezvous);

/// Calls `body`; an exception of c10d or Gloo becomes kFailed and says which rank was doing what,
/// and `why` that may have failed: unless given, another rank's death.
void translate_errors(const Rendezvous& rendezvous, std::string_view doing,
                      const std::function<void()>& body, std::string why = "");

/// What makes a group of a back end, and smaller ones of it.
struct BackendMaker {
  std::string name;  // of the group: "gloo", "nccl"
  at::Device device;
  /// Connects `size` ranks that meet at `store`.
  std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                  int size)>
      connect;
  /// Whether reduce-scatters are exchanged whole and summed here, in the order of ranks. For Gloo,
  /// whose own one is an all-reduce of everything: this moves half the bytes.
  bool sums_here = false;
};

class BackendGroup final : public Group {
 public:
  /// Connects. `rendezvous` has rank and size of this very group. Throws kFailed.
  BackendGroup(BackendMaker maker, c10::intrusive_ptr<c10d::Store> store, Rendezvous rendezvous);
  /// Finishes what is under way; while an error is on its way up, cuts it instead.
  ~BackendGroup() override;

  int rank() const override { return rendezvous_.rank; }
  int size() const override { return rendezvous_.world_size; }
  std::string name() const override { return maker_.name; }
  void all_reduce(at::Tensor tensor) override;
  void broadcast(at::Tensor tensor, int root) override;
  Pending start_all_gather(at::Tensor all_WS, at::Tensor mine_S) override;
  Pending start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) override;
  Pending start_send(at::Tensor tensor, int to) override;
  Pending start_receive(at::Tensor tensor, int from) override;
  void barrier() override;
  void wait_for_first() override;
  std::unique_ptr<Group> split(const std::vector<int>& members, const std::string& name) override;

  /// Sums known numbers in every dtype. Throws kUnsupported when a sum is wrong.
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
  int64_t waits_ = 0;              // for the first rank, so far
  std::vector<at::Tensor> spare_;  // buffers of finished exchanges
};

}  // namespace xffl::comm
