#include "action_limit.h"

#include <chrono>
#include <utility>

namespace xffl::facility {

ActionLimit::ActionLimit(const std::stop_token& stop, std::function<bool()> is_over)
    : stop_(stop), forward_(stop, [this] { either_.request_stop(); }) {
  thread_ = std::jthread([this, over = std::move(is_over)](const std::stop_token& end) {
    std::unique_lock lock(mutex_);
    while (!over()) {
      pause_.wait_for(lock, end, std::chrono::milliseconds(500), [] { return false; });
      if (end.stop_requested()) return;
    }
    reached_ = true;
    either_.request_stop();
  });
}

}  // namespace xffl::facility
