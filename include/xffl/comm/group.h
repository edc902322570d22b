// A group of ranks and the collectives that the trainer needs.
//
// Every rank of a group calls the same collectives in the same order, with tensors of the same
// shape and dtype (float32, float64, int64, bfloat16 or float16; contiguous). Calls block until the
// result may be used, those that start something until it is on its way; not thread-safe. A peer
// that died or is late by more than the rendezvous' timeout makes them, or the wait, throw kFailed
// (over NCCL c10d's watchdog ends the process instead): no rank hangs. All ranks receive the same
// bytes, and the same sums in each run. A world of one copies at most, and nothing where the
// tensors are the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "xffl/comm/rendezvous.h"

namespace xffl::comm {

/// Something that was started: its tensors are neither read (results) nor written (sources) before
/// wait() has returned. On a GPU wait() makes the current stream wait, not the host. Dropping it
/// without waiting is for errors only.
class Pending {
 public:
  Pending() = default;
  explicit Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
  /// Does nothing when called again.
  void wait() {
    if (const auto finish = std::exchange(finish_, nullptr)) finish();
  }

 private:
  std::function<void()> finish_;
};

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "alone", "gloo" or "nccl".
  virtual std::string name() const = 0;

  /// Replaces `tensor` by the sum over ranks.
  virtual void all_reduce(at::Tensor tensor) = 0;
  /// Replaces `tensor` by that of rank `root`.
  virtual void broadcast(at::Tensor tensor, int root) = 0;
  /// `all_WS` has size() times the elements of `mine_S`: the ranks' tensors in rank order.
  /// mine_S may be this rank's part of all_WS.
  virtual Pending start_all_gather(at::Tensor all_WS, at::Tensor mine_S) = 0;
  void all_gather(at::Tensor all_WS, at::Tensor mine_S) {
    start_all_gather(std::move(all_WS), std::move(mine_S)).wait();
  }
  /// `mine_S` becomes this rank's part, of all_WS.numel() / size() elements, of the sum over ranks;
  /// it may be this rank's part of all_WS, of which the rest is then undefined.
  virtual Pending start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) = 0;
  void reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) {
    start_reduce_scatter(std::move(mine_S), std::move(all_WS)).wait();
  }
  /// From one rank to another, in order for each pair; the receiver knows shape and dtype. On GPUs
  /// a group's sends and receives run one after the other: what flows in the two directions of a
  /// pipeline goes through a group each, or two ranks that both send first wait for ever.
  virtual Pending start_send(at::Tensor tensor, int to) = 0;
  virtual Pending start_receive(at::Tensor tensor, int from) = 0;
  /// Returns when all ranks have called it; on a GPU, and their streams have come so far.
  virtual void barrier() = 0;

  /// Of the group of all ranks. Rank 0 says that it has come here, and goes on; the others return
  /// when it has, however long that takes: nobody is late by the timeout here. They ask rank 0's
  /// process every so often, and throw kFailed when it has ended. On the host, whatever the device.
  virtual void wait_for_first() = 0;

  /// A group of some of this one's ranks, with connections of its own, so that what it does passes
  /// what other groups do. Called by all of `members` (strictly increasing, this rank among them)
  /// in the same order, with a `name` that they use once.
  virtual std::unique_ptr<Group> split(const std::vector<int>& members,
                                       const std::string& name) = 0;
};

/// A world of one.
std::unique_ptr<Group> make_alone();

/// The group of all ranks: alone for a world of one, NCCL for a CUDA `device`, else Gloo. Waits for
/// the others at most the rendezvous' timeout and tests the connection with a sum. Throws kFailed,
/// kUnsupported (back end not built in).
std::unique_ptr<Group> make_group(const Rendezvous& rendezvous, at::Device device);

bool has_gloo();
bool has_nccl();

}  // namespace xffl::comm
