// The copies in bfloat16 that a device computes with, from a host that makes them piece by piece:
// the next piece is made while one is on its way.
#pragma once

#include <torch/types.h>

#include <array>

#include "xffl/shard/side_stream.h"

namespace xffl::shard {

class CopiesToDevice {
 public:
  explicit CopiesToDevice(at::Device device) : device_(device), side_(device) {}

  static constexpr int64_t kPieceElements = 8 << 20;

  /// Memory of the host for `count` elements, which are not on their way any more.
  at::Tensor piece(int64_t count) {
    Buffer& buffer = buffers_[next_];
    if (!buffer.host.defined())
      buffer.host =
          at::empty({kPieceElements},
                    at::TensorOptions().dtype(at::kBFloat16).pinned_memory(device_.is_cuda()));
    SideStream::synchronize(buffer.sent);
    return buffer.host.narrow(0, 0, count);
  }

  /// What piece() has given goes to `to`.
  void send(const at::Tensor& host, at::Tensor to) {
    Buffer& buffer = buffers_[next_];
    buffer.sent = last_ = side_.run([&] { to.copy_(host, /*non_blocking=*/true); });
    next_ = 1 - next_;
  }

  /// What is given to the current stream from now on finds all of them there.
  void finish() { side_.wait(last_); }

 private:
  struct Buffer {
    at::Tensor host;
    SideStream::Mark sent;
  };
  at::Device device_;
  SideStream side_;
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
  SideStream::Mark last_;
};

}  // namespace xffl::shard
