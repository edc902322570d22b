#include "xffl/remote/stop_scope.h"

#include "xffl/base/error.h"

namespace xffl::remote {
namespace {

thread_local const StopScope* innermost = nullptr;

}  // namespace

StopScope::StopScope(const std::stop_token& stop) : outer_(innermost) {
  const std::function<void()> request = [this] { both_.request_stop(); };
  if (outer_ != nullptr) from_outer_.emplace(outer_->both_.get_token(), request);
  from_stop_.emplace(stop, request);
  innermost = this;
}

StopScope::~StopScope() { innermost = outer_; }

std::stop_token StopScope::current() {
  return innermost == nullptr ? std::stop_token() : innermost->both_.get_token();
}

void StopScope::check(const std::string& activity) {
  if (innermost != nullptr && innermost->both_.stop_requested())
    throw Error(ErrorKind::kCancelled, "stopped while " + activity);
}

}  // namespace xffl::remote
