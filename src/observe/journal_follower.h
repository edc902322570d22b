// The new events of a journal, for a thread that looks again and again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "xffl/history/store.h"

namespace xffl::observe {

class JournalFollower {
 public:
  /// Follows from the event after `seq`.
  explicit JournalFollower(std::filesystem::path journal, int64_t seq = 0)
      : journal_(std::move(journal)), seq_(seq) {}

  /// Calls `each` with the events since the last call. A call without a change of the files costs a
  /// few system calls; with `certain`, files that look unchanged are read, too. Throws as
  /// history::visit_events(); the next call continues with the event for which `each` failed, or
  /// after the last event that `each` got.
  void read(const history::Store::Visitor& each, bool certain = false);

  int64_t seq() const { return seq_; }

 private:
  const std::filesystem::path journal_;
  int64_t seq_;
  std::string trace_;  // of the journal's files at the last reading
};

}  // namespace xffl::observe
