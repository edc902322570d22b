// Protects files from the purge of scratch file systems (facilities.<f>.purge_after).
//
// Sites remove files that were neither read nor written for weeks, and a round may wait in a queue
// for just as long. During a run the guard touches xffl's own files at such a facility, and warns
// before the site removes the user's files.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
#include "xffl/remote/session.h"

namespace xffl::facility {
struct Context;
}

namespace xffl::upkeep {

struct FileAge {
  std::string path;
  std::optional<std::chrono::seconds> unused_for;  // empty: the file does not exist
};

/// The user's files that a facility's jobs read: data, image, trainer.
std::vector<std::string> user_files(const config::Facility& facility);

/// The time since the last read or write of each file, by the facility's clock. Leaves out files on
/// other file systems than `workdir`'s, which the purge does not reach. Runs one command, light on
/// a login node. Throws kRemote and kIo as the session does, kCancelled on `stop`.
std::vector<FileAge> file_ages(remote::Session& session, const RemotePath& workdir,
                               const std::vector<std::string>& files, std::stop_token stop = {});

/// "was not used for 35 days: the site removes it after 40 days"; empty while the file is unused
/// for less than three quarters of `purge_after`.
std::string purge_warning(const FileAge& file, std::chrono::seconds purge_after);

// The checks of a run. Not thread-safe.
class PurgeWatch {
 public:
  /// Whether the facility's next check is due: eight checks per `purge_after`.
  bool is_due(const config::Facility& facility, Clock::MonotonicTime now);
  /// Touches xffl's files below `folder` that were unused for half of `purge_after`, and logs each
  /// warning about the user's files once, again when the file was in use meanwhile or is gone. A
  /// failed check is only logged, a failure other than a lost link as a warning, and is due again
  /// at once. Throws kCancelled on `stop`.
  void check(remote::Session& session, const config::Facility& facility, const RemotePath& folder,
             std::stop_token stop);

 private:
  // Runs a part of a check; warns of its failure once, until it succeeds. False for a lost link, of
  // which the run warns.
  bool attempt(const config::Facility& facility, const std::string& part,
               const std::function<void()>& body);
  void warn_of(const config::Facility& facility, const FileAge& file);
  // Whether the warning differs from the last one about the file.
  bool is_news(const std::string& key, const FileAge& file, const std::string& warning);

  std::map<FacilityName, Clock::MonotonicTime> last_;
  std::map<std::string, bool> reported_;  // facility and file; whether the file was gone
  std::set<std::string> failed_;          // facility and part of the check
};

/// A thread that runs the checks of all facilities until a stop request, which interrupts a check.
/// A facility may wait for weeks for other facilities, and its next job needs its model and the
/// optimizer's state. No thread when no facility has a purge policy. `context` must outlive the
/// thread.
std::jthread start_purge_guard(facility::Context& context);

}  // namespace xffl::upkeep
