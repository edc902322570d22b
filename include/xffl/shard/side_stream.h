// Work of a GPU beside its main work: copies to and from the host's memory while kernels run.
//
// Like comm::Group's collectives, work is ordered by events: nothing here makes the host wait but
// synchronize(). On a CPU all is done at once, and marks are null.
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
  /// A point in a stream's work; null means that nothing is to be waited for.
  using Mark = std::shared_ptr<c10::Event>;

  explicit SideStream(at::Device device);

  /// Gives what `work` starts to the side stream, behind all that the current stream has been given
  /// so far. Returns its end. Of memory that `work` uses and the caller frees, keep() must be told.
  Mark run(const std::function<void()>& work);
  /// `x`, of the current stream's memory, is used by work that was given to the side stream.
  void keep(const at::Tensor& x) const;

  /// What is given to the current stream from now on waits for the mark.
  void wait(const Mark& mark) const;
  /// The host waits.
  static void synchronize(const Mark& mark);
  /// The end of what the current stream has been given so far.
  Mark mark_current() const;

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace xffl::shard
