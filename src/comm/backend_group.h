// A Group over one of c10d's back ends, and the store at which its ranks meet.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "xffl/comm/group.h"

namespace xffl::comm {

/// Rank 0 listens at master_port, the others connect. Throws kFailed.
c10::intrusive_ptr<c10d::Store> meet(const Rendezvous& rendezvous);

/// Calls `body`; an exception of c10d or Gloo becomes kFailed and says which rank was doing what.
void translate_errors(const Rendezvous& rendezvous, std::string_view doing,
                      const std::function<void()>& body);

class BackendGroup final : public Group {
 public:
  BackendGroup(std::string name, c10::intrusive_ptr<c10d::Backend> backend, Rendezvous rendezvous,
               at::Device device)
      : name_(std::move(name)),
        backend_(std::move(backend)),
        rendezvous_(std::move(rendezvous)),
        device_(device) {}

  int rank() const override { return rendezvous_.rank; }
  int size() const override { return rendezvous_.world_size; }
  std::string name() const override { return name_; }
  void all_reduce(at::Tensor tensor) override;
  void broadcast(at::Tensor tensor, int root) override;
  void all_gather(at::Tensor all_WS, at::Tensor mine_S) override;
  void reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) override;
  void barrier() override;

  /// Sums known numbers in every dtype. Throws kUnsupported when a sum is wrong.
  void self_test();

 private:
  std::string name_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Rendezvous rendezvous_;
  at::Device device_;
};

}  // namespace xffl::comm
