#include "host_group.h"

#include <torch/types.h>

namespace xffl::comm {
namespace {

at::Tensor empty_on_host(const at::Tensor& like) {
  return at::empty({like.numel()}, like.options().device(at::kCPU));
}

// Waits for the work of the current stream that makes `tensor`.
at::Tensor copy_on_host(const at::Tensor& tensor) {
  const at::Tensor host = empty_on_host(tensor);
  host.copy_(tensor.flatten());
  return host;
}

// After `pending`, copies `host` to `to`, on the stream that is then current.
Pending then_copy(Pending pending, at::Tensor to, at::Tensor host) {
  return Pending([pending = std::make_shared<Pending>(std::move(pending)), to = std::move(to),
                  host = std::move(host)]() mutable {
    pending->wait();
    to.copy_(host.view_as(to));
  });
}

}  // namespace

void HostGroup::all_reduce(at::Tensor tensor) {
  const at::Tensor host = copy_on_host(tensor);
  on_host_->all_reduce(host);
  tensor.copy_(host.view_as(tensor));
}

Pending HostGroup::start_all_gather(at::Tensor all_WS, at::Tensor mine_S) {
  const at::Tensor all = empty_on_host(all_WS);
  Pending pending = on_host_->start_all_gather(all, copy_on_host(mine_S));
  return then_copy(std::move(pending), std::move(all_WS), all);
}

Pending HostGroup::start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) {
  const at::Tensor mine = empty_on_host(mine_S);
  Pending pending = on_host_->start_reduce_scatter(mine, copy_on_host(all_WS));
  return then_copy(std::move(pending), std::move(mine_S), mine);
}

Pending HostGroup::start_send(at::Tensor tensor, int to) {
  at::Tensor host = copy_on_host(tensor);
  // The copy lives until the operation's end.
  return Pending([pending = std::make_shared<Pending>(on_host_->start_send(host, to)), host] {
    pending->wait();
  });
}

Pending HostGroup::start_receive(at::Tensor tensor, int from) {
  const at::Tensor host = empty_on_host(tensor);
  Pending pending = on_host_->start_receive(host, from);
  return then_copy(std::move(pending), std::move(tensor), host);
}

void HostGroup::barrier() {
  at::zeros({1}, at::TensorOptions().device(device_))
      .item<float>();  // waits for this rank's stream
  on_host_->barrier();
}

std::unique_ptr<Group> HostGroup::split(const std::vector<int>& members, const std::string& name) {
  std::unique_ptr<Group> part = on_host_->split(members, name);
  if (part->size() == 1) return part;
  return std::make_unique<HostGroup>(std::move(part), device_, ranks_per_device_);
}

}  // namespace xffl::comm
