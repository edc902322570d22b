// What each facility is doing now: runs/0003/live.json, for `xffl status`. It is no memory: nothing
// reads it back to decide anything, and it may be absent or old.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "xffl/base/clock.h"
#include "xffl/base/names.h"

namespace xffl::history {

struct LiveFacility {
  int round = 0;
  std::string doing;      // describe(course)
  std::string since_utc;  // of this `doing`
};
using Live = std::map<FacilityName, LiveFacility>;

// Thread-safe. Failing to write is logged and harms nothing.
class LiveBoard {
 public:
  LiveBoard(std::filesystem::path path, const Clock& clock)
      : path_(std::move(path)), clock_(clock) {}
  ~LiveBoard();  // removes the file: nothing is going on any more

  void show(int round, const FacilityName& facility, const std::string& doing);

 private:
  std::filesystem::path path_;
  const Clock& clock_;
  std::mutex mutex_;
  Live facilities_;
};

/// Empty when there is no such file or it is unreadable.
Live read_live(const std::filesystem::path& path);

}  // namespace xffl::history
