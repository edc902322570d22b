// A group of ranks on GPUs whose collectives go through the host's memory: NCCL needs a GPU for
// each rank, so ranks that share a GPU use Gloo.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "xffl/comm/group.h"

namespace xffl::comm {

class HostGroup final : public Group {
 public:
  /// `on_host` is a group over tensors in host memory. Tensors of any device work; a call copies
  /// them and waits for the copies.
  HostGroup(std::unique_ptr<Group> on_host, at::Device device, int ranks_per_device)
      : on_host_(std::move(on_host)), device_(device), ranks_per_device_(ranks_per_device) {}

  int rank() const override { return on_host_->rank(); }
  int size() const override { return on_host_->size(); }
  std::string name() const override { return on_host_->name(); }
  int ranks_per_device() const override { return ranks_per_device_; }
  void all_reduce(at::Tensor tensor) override;
  Pending start_all_gather(at::Tensor all_WS, at::Tensor mine_S) override;
  Pending start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) override;
  Pending start_send(at::Tensor tensor, int to) override;
  Pending start_receive(at::Tensor tensor, int from) override;
  void barrier() override;
  void wait_for_first() override { on_host_->wait_for_first(); }
  std::unique_ptr<Group> split(const std::vector<int>& members, const std::string& name) override;

 private:
  std::unique_ptr<Group> on_host_;
  at::Device device_;
  int ranks_per_device_;
};

}  // namespace xffl::comm
