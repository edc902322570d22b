#include "agree.h"

#include <torch/types.h>

#include <optional>

#include "xffl/base/error.h"

namespace xffl::train {

void on_first_rank(comm::Group& group, at::Device device, const std::function<void()>& body) {
  at::Tensor failed = at::zeros({1}, at::TensorOptions().dtype(at::kLong).device(device));
  std::optional<Error> error;
  if (group.rank() == 0) {
    try {
      body();
    } catch (const Error& caught) {
      error = caught;
      failed.fill_(1);
    }
  }
  group.all_reduce(failed);
  if (error) throw *error;
  if (failed.item<int64_t>() != 0)
    throw Error(ErrorKind::kFailed, "rank 0 stopped the job: its output says why");
}

StopRequest agree_on_stop(comm::Group& group, at::Device device, StopRequest mine) {
  if (group.size() == 1) return mine;
  at::Tensor wishes = at::zeros({2}, at::TensorOptions().dtype(at::kLong));
  if (mine == StopRequest::kFinish) wishes[0].fill_(1);
  if (mine == StopRequest::kAbort) wishes[1].fill_(1);
  wishes = wishes.to(device);
  group.all_reduce(wishes);
  wishes = wishes.to(at::kCPU);
  if (wishes[1].item<int64_t>() != 0) return StopRequest::kAbort;
  return wishes[0].item<int64_t>() != 0 ? StopRequest::kFinish : StopRequest::kNone;
}

int64_t max_over_ranks(comm::Group& group, at::Device device, int64_t mine) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor all_W = at::empty({group.size()}, options);
  group.all_gather(all_W, at::full({1}, mine, options));
  return all_W.max().item<int64_t>();
}

}  // namespace xffl::train
