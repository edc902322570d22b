// A pipeline of stages, each with some of the model's units, and the data ranks beside it.
//
// world size = stages x data ranks, and rank = stage x data ranks + data rank: the ranks of one
// stage, which sum gradients of the whole stage, are neighbours and so on as few nodes as can be;
// what goes from stage to stage, one activation a micro-batch, crosses nodes. Rank 0 is in the
// first stage. One stage is data parallelism: nothing is split or sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <vector>

#include "xffl/comm/group.h"

namespace xffl::train {

/// `count` ranks from `first` on: members of a group, for comm::Group::split.
std::vector<int> strided_ranks(int first, int count, int stride);

class Pipeline {
 public:
  /// Collective over `world`, which must outlive this object; on return neighbours are connected.
  /// `device` is where tensors lie. Throws kConfig when `num_stages` does not divide the world.
  Pipeline(comm::Group& world, int num_stages, at::Device device);

  int stage() const { return stages().rank(); }
  int num_stages() const { return stages().size(); }
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() + 1 == num_stages(); }
  /// The ranks of this stage, among which sequences are divided.
  comm::Group& data() const { return *data_; }
  /// The ranks that work on this rank's sequences, one of each stage in order.
  comm::Group& stages() const { return *downwards_; }

  /// What a stage says to the next one (down: activations) and to the former one (up: gradients).
  /// Contiguous, in order for each direction; the receiver knows shape and dtype. A rank starts to
  /// send only when what it sent before in this direction has arrived.
  void send_down(at::Tensor tensor);
  void send_up(at::Tensor tensor);
  comm::Pending start_receive_from_above(at::Tensor tensor);
  comm::Pending start_receive_from_below(at::Tensor tensor);
  /// Waits for something received, and counts the time.
  void wait(comm::Pending& pending);
  /// Waits until all that was sent has arrived.
  void finish_sending();

  /// So far, in this rank's waiting for the other stages.
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
  // A group, and so connections, for each direction: over NCCL two ranks that both send first, one
  // down and one up, would wait for each other on one connection.
  std::unique_ptr<comm::Group> downwards_, upwards_;
  Sent sent_down_, sent_up_;
  std::chrono::duration<double> waited_{0};
};

}  // namespace xffl::train
