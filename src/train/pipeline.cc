#include "xffl/train/pipeline.h"

#include <torch/types.h>

#include <string>

#include "xffl/base/error.h"

namespace xffl::train {

std::vector<int> strided_ranks(int first, int count, int stride) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

Pipeline::Pipeline(comm::Group& world, int num_stages, at::Device device) : data_(&world) {
  if (num_stages == 1) {
    downwards_ = comm::make_single_rank();
    return;
  }
  if (num_stages < 1 || world.size() % num_stages != 0) {
    throw Error(ErrorKind::kConfig, "training.pipeline.stages is " + std::to_string(num_stages) +
                                        ", which does not divide the " +
                                        std::to_string(world.size()) + " ranks of this job");
  }
  const int num_data = world.size() / num_stages;
  const int first = world.rank() / num_data * num_data;
  own_data_ = world.split(strided_ranks(first, num_data, 1), "data");
  data_ = own_data_.get();
  const std::vector<int> column = strided_ranks(world.rank() % num_data, num_stages, num_data);
  downwards_ = world.split(column, "down");
  upwards_ = world.split(column, "up");
  connect(device);
}

// NCCL connects two ranks at their first message, and both wait then. All ranks connect here in one
// order, independent of the schedule.
void Pipeline::connect(at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor down = at::zeros({1}, options), up = at::zeros({1}, options);
  if (!is_first()) start_receive_from_above(down).wait();
  if (!is_last()) send_down(down);
  if (!is_last()) start_receive_from_below(up).wait();
  if (!is_first()) send_up(up);
  finish_sending();
}

void Pipeline::send(comm::Group& group, Sent& last, at::Tensor tensor, int to) {
  wait(last.pending);
  last.tensor = tensor.contiguous();
  last.pending = group.start_send(last.tensor, to);
}

void Pipeline::send_down(at::Tensor tensor) {
  send(*downwards_, sent_down_, std::move(tensor), stage() + 1);
}

void Pipeline::send_up(at::Tensor tensor) {
  send(*upwards_, sent_up_, std::move(tensor), stage() - 1);
}

comm::Pending Pipeline::start_receive_from_above(at::Tensor tensor) {
  return downwards_->start_receive(std::move(tensor), stage() - 1);
}

comm::Pending Pipeline::start_receive_from_below(at::Tensor tensor) {
  return upwards_->start_receive(std::move(tensor), stage() + 1);
}

void Pipeline::wait(comm::Pending& pending) {
  const auto start = std::chrono::steady_clock::now();
  pending.wait();
  waited_ += std::chrono::steady_clock::now() - start;
}

void Pipeline::finish_sending() {
  for (Sent* sent : {&sent_down_, &sent_up_}) {
    wait(sent->pending);
    sent->tensor.reset();
  }
}

}  // namespace xffl::train
