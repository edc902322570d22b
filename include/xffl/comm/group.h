// A group of ranks and the collectives that the trainer needs.
//
// Every rank of a group calls the same collectives in the same order, with tensors of the same
// shape and dtype (float32, float64, int64, bfloat16 or float16; contiguous). A call blocks until
// the caller may use the result. A start_ call returns once the operation is queued. Not
// thread-safe. No rank hangs: if a peer died, or is late by more than the rendezvous' time-out, the
// call or its wait() throws kFailed. (Over NCCL c10d's watchdog ends the process instead.) All
// ranks receive the same bytes, and the same sums in each run. In a group of one rank a collective
// is a copy, or does nothing if the tensors share memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "xffl/comm/rendezvous.h"

namespace xffl::comm {

/// A started operation. Before wait() has returned, the caller neither reads the operation's
/// results nor writes its sources. On a GPU wait() makes the current stream wait, not the host.
/// Only error paths drop a Pending without waiting.
class Pending {
 public:
  Pending() = default;
  explicit Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
  /// A second call of wait() does nothing.
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
  /// The back end: "single", "gloo" or "nccl".
  virtual std::string name() const = 0;
  /// The largest number of ranks that share a GPU; 1 without a GPU.
  virtual int ranks_per_device() const { return 1; }

  /// Replaces `tensor` by the sum over ranks.
  virtual void all_reduce(at::Tensor tensor) = 0;
  /// `all_WS` has size() times the elements of `mine_S`: the ranks' tensors in rank order.
  /// mine_S may be this rank's part of all_WS.
  virtual Pending start_all_gather(at::Tensor all_WS, at::Tensor mine_S) = 0;
  void all_gather(at::Tensor all_WS, at::Tensor mine_S) {
    start_all_gather(std::move(all_WS), std::move(mine_S)).wait();
  }
  /// `mine_S` becomes this rank's part, all_WS.numel() / size() elements, of the sum over ranks.
  /// mine_S may be this rank's part of all_WS; the rest of all_WS is then undefined.
  virtual Pending start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) = 0;
  void reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) {
    start_reduce_scatter(std::move(mine_S), std::move(all_WS)).wait();
  }
  /// Messages from one rank to another arrive in order; the receiver knows shape and dtype. On GPUs
  /// a group's sends and receives run one after the other. Two ranks that first send to each other
  /// in one group deadlock, so a pipeline needs a group for each direction.
  virtual Pending start_send(at::Tensor tensor, int to) = 0;
  virtual Pending start_receive(at::Tensor tensor, int from) = 0;
  /// Returns when all ranks have called barrier(). On a GPU the ranks' streams have then reached
  /// the barrier, too.
  virtual void barrier() = 0;

  /// For the group of all ranks. Rank 0 records its arrival and returns; the other ranks return
  /// once rank 0 has arrived. The time-out does not apply. The ranks poll rank 0's process and
  /// throw kFailed when that process has ended. Blocks the host on every device.
  virtual void wait_for_first() = 0;

  /// A group of some of this group's ranks. The new group has its own connections, so that its
  /// operations overtake those of other groups. All of `members` (strictly increasing, with this
  /// rank) call split() in the same order, with a `name` that they use once.
  virtual std::unique_ptr<Group> split(const std::vector<int>& members,
                                       const std::string& name) = 0;
};

/// A group of one rank.
std::unique_ptr<Group> make_single_rank();

/// The group of all ranks: a single rank, NCCL for a CUDA `device`, else Gloo. Waits for the other
/// ranks at most the rendezvous' time-out and tests the connection with a sum. Throws kFailed,
/// kUnsupported (back end not built in). `device_name` names this rank's GPU among those of all
/// machines: if two ranks name the same GPU, all ranks use Gloo through the host's memory, because
/// NCCL needs a GPU for each rank; rank 0 logs a warning. Without a name no GPU is shared.
std::unique_ptr<Group> make_group(const Rendezvous& rendezvous, at::Device device,
                                  const std::string& device_name = "");

bool has_gloo();
bool has_nccl();
std::string nccl_version();  // "2.27.3"; "" without NCCL

}  // namespace xffl::comm
