// Pipeline parallelism: stages, each with some of the model's units, and the data ranks of a stage.
//
// world size = stages x data ranks, and rank = stage x data ranks + data rank. The ranks of one
// stage all-reduce the stage's gradients, so they are neighbours on as few nodes as possible; only
// one activation per micro-batch travels between stages, across nodes. Rank 0 is in the first
// stage. One stage is plain data parallelism.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <vector>

#include "xffl/comm/group.h"

namespace xffl::train {

/// `count` ranks, beginning with `first`: the members of a group for comm::Group::split.
std::vector<int> strided_ranks(int first, int count, int stride);

class Pipeline {
 public:
  /// Connects neighbouring stages; collective over `world`, which must outlive this object. Tensors
  /// are on `device`. Throws kConfig if `num_stages` does not divide the world.
  Pipeline(comm::Group& world, int num_stages, at::Device device);

  int stage() const { return stages().rank(); }
  int num_stages() const { return stages().size(); }
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() + 1 == num_stages(); }
  /// The ranks of this stage, which share the sequences of a batch.
  comm::Group& data() const { return *data_; }
  /// The ranks that process this rank's sequences, one per stage in order.
  comm::Group& stages() const { return *downwards_; }

  /// Send activations to the next stage (down) and gradients to the previous stage (up). Tensors
  /// are contiguous and arrive in order in each direction; the receiver knows shape and dtype. A
  /// send waits until the previous tensor in its direction has arrived.
  void send_down(at::Tensor tensor);
  void send_up(at::Tensor tensor);
  comm::Pending start_receive_from_above(at::Tensor tensor);
  comm::Pending start_receive_from_below(at::Tensor tensor);
  /// Waits for a tensor and counts the time.
  void wait(comm::Pending& pending);
  /// Waits until all sent tensors have arrived.
  void finish_sending();

  /// Total seconds that this rank waited for other stages.
  double seconds_waited() const { return waited_.count(); }

 private:
  struct Sent {
    comm::Pending pending;
    at::Tensor tensor;  // kept until it has arrived
  };
  void connect(at::Device device);
  void send(comm::Group& group, Sent& last, at::Tensor tensor, int to);

  std::unique_ptr<comm::Group> own_data_;
  comm::Group* data_;
  // Each direction has its own group and connections: over one NCCL connection a rank that sends
  // down and a rank that sends up at the same time would deadlock.
  std::unique_ptr<comm::Group> downwards_, upwards_;
  Sent sent_down_, sent_up_;
  std::chrono::duration<double> waited_{0};
};

}  // namespace xffl::train
