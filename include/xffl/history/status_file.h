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

struct FacilityActivity {
  int round = 0;
  std::string doing;      // describe(course)
  std::string since_utc;  // of this `doing`
};
using Activities = std::map<FacilityName, FacilityActivity>;

// Thread-safe. Failing to write is logged and harms nothing.
class StatusFile {
 public:
  StatusFile(std::filesystem::path path, const Clock& clock)
      : path_(std::move(path)), clock_(clock) {}
  ~StatusFile();  // removes the file: nothing is going on any more

  void show(int round, const FacilityName& facility, const std::string& doing);

 private:
  std::filesystem::path path_;
  const Clock& clock_;
  std::mutex mutex_;
  Activities facilities_;
};

/// Empty when there is no such file or it is unreadable.
Activities read_activities(const std::filesystem::path& path);

}  // namespace xffl::history
