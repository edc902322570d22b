#include "agree.h"

#include <torch/types.h>

#include <optional>
#include <string>

#include "xffl/base/error.h"
#include "xffl/train/foreign_error.h"

namespace xffl::train {

namespace {

enum class Patience { kTimeout, kForFirst };

// Of the ranks whose `body` threw the first one's number is in what the others throw.
void run_and_agree(comm::Group& group, at::Device device, bool mine, Patience patience,
                   const std::function<void()>& body) {
  at::Tensor failed_W =
      at::zeros({group.size()}, at::TensorOptions().dtype(at::kLong).device(device));
  std::optional<Error> error;
  if (mine) {
    try {
      body();
    } catch (const std::exception& caught) {  // the file system's and LibTorch's too
      error = translated(caught);
      failed_W[group.rank()].fill_(1);
    }
  }
  try {
    if (patience == Patience::kForFirst) group.wait_for_first();
    group.all_reduce(failed_W);
  } catch (const Error&) {
    if (error) throw *error;  // which says more than that the others have ended
    throw;
  }
  if (error) throw *error;
  if (failed_W.sum().item<int64_t>() == 0) return;
  throw Error(ErrorKind::kFailed, "rank " + std::to_string(failed_W.argmax().item<int64_t>()) +
                                      " stopped the job: its output says why");
}

}  // namespace

void on_first_rank(comm::Group& group, at::Device device, const std::function<void()>& body) {
  run_and_agree(group, device, group.rank() == 0, Patience::kForFirst, body);
}

void on_all_ranks(comm::Group& group, at::Device device, const std::function<void()>& body) {
  run_and_agree(group, device, true, Patience::kTimeout, body);
}

void on_all_ranks_at_length(comm::Group& group, at::Device device,
                            const std::function<void()>& body) {
  run_and_agree(group, device, true, Patience::kForFirst, body);
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
