#include "action_limit.h"

#include <chrono>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "xffl/base/error.h"

namespace xffl::facility {

ActionLimit::ActionLimit(const std::stop_token& stop, std::function<bool()> is_over) try
    : stop_(stop), forward_(stop, [this] { either_.request_stop(); }) {
  // The action itself meets the errors of `is_over`: it uses the same journal and memory.
  const auto over = [is_over = std::move(is_over)] {
    try {
      return is_over();
    } catch (const std::exception&) {
      return false;
    }
  };
  const auto watch = [this, over](const std::stop_token& end) {
    std::unique_lock lock(mutex_);
    while (!over()) {
      pause_.wait_for(lock, end, std::chrono::milliseconds(500), [] { return false; });
      if (end.stop_requested()) return;
    }
    reached_ = true;
    either_.request_stop();
  };
  try {
    thread_ = std::jthread(watch);
  } catch (const std::system_error& error) {  // this machine's limit of processes is reached
    throw Error(ErrorKind::kIo, std::string("cannot start a thread: ") + error.what());
  }
} catch (const std::bad_alloc&) {
  throw Error(ErrorKind::kIo, kNoMemory);
}

}  // namespace xffl::facility
