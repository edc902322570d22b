// The journal and the state that follows from it, together: what is recorded is applied at once.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "xffl/base/json.h"
#include "xffl/history/run_state.h"
#include "xffl/history/store.h"

namespace xffl::history {

/// Thread-safe: every facility's thread records through it.
class RunHistory {
 public:
  /// Opens the journal for writing and replays it; errors as Store::open and replay.
  explicit RunHistory(const std::filesystem::path& path);

  /// Durable on return, and visible to history().
  void record(std::string kind, Json payload = Json::object());
  void record(std::string kind, int round, Json payload = Json::object());
  void record(std::string kind, int round, const FacilityName& facility, int attempt,
              Json payload = Json::object());

  RunState state() const;
  RoundState round(int number) const;
  std::optional<std::string> paused(const FacilityName& name) const;
  FacilityState facility(int round, const FacilityName& name) const;

 private:
  void append(StoredEvent event, const Json& payload);

  mutable std::mutex mutex_;
  std::unique_ptr<Store> journal_;
  RunState run_state_;
};

}  // namespace xffl::history
