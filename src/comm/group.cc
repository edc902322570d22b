#include "xffl/comm/group.h"

#include <torch/types.h>

#include "backends.h"
#include "xffl/base/error.h"

namespace xffl::comm {
namespace {

class SingleRank final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "single"; }
  void all_reduce(at::Tensor) override {}
  void broadcast(at::Tensor, int) override {}
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
  // Aliases need no copy.
  static void copy(at::Tensor& to, const at::Tensor& from) {
    if (to.data_ptr() != from.data_ptr()) to.copy_(from.view_as(to));
  }
};

}  // namespace

std::unique_ptr<Group> make_single_rank() { return std::make_unique<SingleRank>(); }

std::unique_ptr<Group> make_group(const Rendezvous& rendezvous, at::Device device) {
  if (rendezvous.world_size == 1) return make_single_rank();
  return device.is_cuda() ? make_nccl(rendezvous, device) : make_gloo(rendezvous);
}

}  // namespace xffl::comm
