// The end of a command on a signal.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace xffl {

/// Requests a stop on the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once
/// (exit code 130). Only one instance at a time. A SIGHUP that the process ignores at the start
/// (nohup) stays ignored.
///
/// A reader of stderr that stands still delays neither the stop nor the end of the process; the
/// message is then left out.
///
/// A signal that arrives at the end of the object's life is dropped: the command has its result,
/// and prints the result or its error.
class StopOnSignal {
 public:
  /// Prints `message` on the first signal. With `patience`, ends the process, with the exit code of
  /// kCancelled, if it still runs this long after the first signal, also after the object's end.
  /// `patience` is for work that survives a kill at any instant.
  explicit StopOnSignal(std::string message = "detaching; jobs at the facilities keep running",
                        std::optional<std::chrono::seconds> patience = {});
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  std::stop_token token() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace xffl
