// A GPU's second stream: copies to and from the host's memory while kernels run.
//
// Events order the work, as in comm::Group's collectives: only synchronize() makes the host wait.
// On a CPU work runs at once, and marks are null.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

namespace c10 {
struct Event;
}

namespace xffl::shard {

class SideStream {
 public:
  /// A point in a stream's work; null: no wait is needed.
  using Mark = std::shared_ptr<c10::Event>;

  explicit SideStream(at::Device device);

  /// Starts `work` on the side stream, after all earlier work of the current stream, and returns
  /// the mark at the end of `work`. For memory that `work` uses and the caller frees, the caller
  /// must call keep().
  Mark run(const std::function<void()>& work);
  /// Keeps the memory of `x`, which belongs to the current stream, until the side stream has used
  /// it.
  void keep(const at::Tensor& x) const;

  /// Makes later work of the current stream wait for the mark.
  void wait(const Mark& mark) const;
  /// Makes the host wait for the mark.
  static void synchronize(const Mark& mark);
  /// The mark at the end of all earlier work of the current stream.
  Mark mark_current() const;

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace xffl::shard
