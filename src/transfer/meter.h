// Counts the bytes of a transfer, reports its progress and checks for a stop request.
#pragma once

#include <algorithm>
#include <stop_token>
#include <string>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

class Meter {
 public:
  Meter(uint64_t total_bytes, std::stop_token stop, const OnProgress& on_progress)
      : stop_(std::move(stop)), on_progress_(on_progress) {
    progress_.total_bytes = total_bytes;
  }

  /// Throws kCancelled when a stop was requested.
  void check(const std::string& activity) const {
    if (stop_.stop_requested())
      throw Error(ErrorKind::kCancelled,
                  activity + " was stopped; the part files are kept, run again to continue");
  }
  void moved(uint64_t bytes) {
    progress_.moved_bytes += bytes;
    present(bytes);
  }
  void present(uint64_t bytes) {
    // A session may request the same bytes twice, after a broken stream.
    progress_.done_bytes = std::min(progress_.done_bytes + bytes, progress_.total_bytes);
    if (on_progress_) on_progress_(progress_);
  }
  /// Uncounts `bytes` that failed verification.
  void undo(uint64_t bytes) { progress_.done_bytes -= std::min(bytes, progress_.done_bytes); }

  const std::stop_token& stop() const { return stop_; }
  Result result() const { return {progress_.moved_bytes}; }

 private:
  std::stop_token stop_;
  const OnProgress& on_progress_;
  Progress progress_;
};

}  // namespace xffl::transfer
