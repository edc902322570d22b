// Sites remove files that nobody used for weeks (facilities.<f>.purge_after). A round may wait in a
// queue for as long: what xffl put there is kept young while it is needed, and people are told in
// time of what is theirs.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
#include "xffl/remote/session.h"

namespace xffl::upkeep {

struct FileAge {
  std::string path;
  std::optional<std::chrono::seconds> unused_for;  // empty: there is no such file
};

/// The files of people that a facility's jobs read: data, image, trainer.
std::vector<std::string> files_of_people(const config::Facility& facility);

/// For how long each of them was neither read nor written, by the facility's clock. Those that lie
/// on another file system than `workdir`, to which its purging does not apply, are left out. One
/// command, light on a log-in node. Throws kRemote and kIo as the session does, kCancelled on
/// `stop`.
std::vector<FileAge> ages(remote::Session& session, const RemotePath& workdir,
                          const std::vector<std::string>& files, std::stop_token stop = {});

/// "no longer used in 5 days: the site removes it after 40": empty while there is no reason to say
/// so.
std::string purge_warning(const FileAge& file, std::chrono::seconds purge_after);

// Looks after what lies at facilities that purge, now and then. Thread-safe; a facility is looked
// after by one thread at a time.
class PurgeWatch {
 public:
  /// Whether the facility's turn has come: eight times in the time after which files are removed.
  bool is_due(const config::Facility& facility, Clock::MonotonicTime now);
  /// Marks the files below `folder`, which are xffl's own and needed, as used, when they were not
  /// for half of that time, and warns of people's files, once each. What fails is logged, and due
  /// again at once. Throws kCancelled on `stop`.
  void look_after(remote::Session& session, const config::Facility& facility,
                  const RemotePath& folder, std::stop_token stop);

 private:
  bool is_new(const std::string& told);

  std::mutex mutex_;
  std::map<FacilityName, Clock::MonotonicTime> last_;
  std::set<std::string> told_;
};

}  // namespace xffl::upkeep
