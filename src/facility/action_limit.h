// Ends a facility's action when its time is over: a facility that answers slowly, or one byte a
// minute, loses its round at the deadline instead of delaying the round.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace xffl::facility {

inline constexpr const char* kNoMemory = "this machine has no memory left";

class ActionLimit {
 public:
  /// A thread calls `is_over` twice a second until it returns true, which stops token(). Throws kIo
  /// when this machine has no thread or no memory for it.
  ActionLimit(const std::stop_token& stop, std::function<bool()> is_over);

  /// Stopped with `stop` and when the time is over.
  std::stop_token token() const { return either_.get_token(); }
  /// True when the time, and not `stop`, has ended the action.
  bool is_reached() const { return reached_ && !stop_.stop_requested(); }

 private:
  const std::stop_token stop_;
  std::stop_source either_;
  std::stop_callback<std::function<void()>> forward_;
  std::atomic<bool> reached_ = false;
  std::mutex mutex_;
  std::condition_variable_any pause_;
  std::jthread thread_;
};

}  // namespace xffl::facility
