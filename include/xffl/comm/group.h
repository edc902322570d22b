// A group of ranks and the collectives that the trainer needs.
//
// Every rank of a group calls the same collectives in the same order, with tensors of the same
// shape and dtype (float32, float64, int64 or bfloat16; contiguous). Calls block until the result
// may be used; not thread-safe. A peer that died or is late by more than the rendezvous' timeout
// makes them throw kFailed: no rank hangs. All ranks receive the same bytes. A world of one does
// nothing and copies nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "xffl/comm/rendezvous.h"

namespace xffl::comm {

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
  virtual void all_gather(at::Tensor all_WS, at::Tensor mine_S) = 0;
  /// `mine_S` becomes this rank's part, of all_WS.numel() / size() elements, of the sum over ranks.
  virtual void reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) = 0;
  virtual void barrier() = 0;
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
