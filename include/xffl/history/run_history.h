// The journal and the state that follows from it: record() applies each event at once.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "xffl/history/events.h"
#include "xffl/history/run_state.h"
#include "xffl/history/store.h"

namespace xffl::history {

/// Thread-safe: every facility's thread records through it.
class RunHistory {
 public:
  /// Opens the journal for writing and replays it; errors as Store::open and replay.
  explicit RunHistory(const std::filesystem::path& path);

  /// Durable on return, and visible to state(). `scope` is {} for an event of the whole run.
  void record(const EventScope& scope, const Event& event);

  RunState state() const;
  RoundState round(int number) const;
  std::optional<std::string> paused(const FacilityName& name) const;
  FacilityState facility(int round, const FacilityName& name) const;

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<Store> journal_;
  RunState run_state_;
};

}  // namespace xffl::history
