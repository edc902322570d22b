// A stop token that every call of a session by one thread obeys, also the short calls.
//
// An action at a facility consists of many short calls (stat(), rename(), look()), each with its
// own time limit. A hostile or slow facility can make their sum arbitrarily long. While a StopScope
// lives, each blocking call of a session by its thread throws kCancelled after a stop request,
// within half a second, also while the call connects or waits for another thread's connection
// attempt.
//
// An inner scope also obeys the outer scopes of its thread. Other threads are not affected.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

namespace xffl::remote {

class StopScope {
 public:
  explicit StopScope(const std::stop_token& stop);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  /// The token of the thread's innermost scope; without a scope a token that is never stopped.
  static std::stop_token current();
  /// Throws kCancelled ("stopped while `activity`") after a stop request to current().
  static void check(const std::string& activity);

 private:
  using Forward = std::stop_callback<std::function<void()>>;

  std::stop_source both_;
  const StopScope* const outer_;
  std::optional<Forward> from_outer_, from_stop_;
};

}  // namespace xffl::remote
