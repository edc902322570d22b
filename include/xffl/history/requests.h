// What people ask of a run while its coordinator holds the journal: files in runs/0003/requests/,
// which the coordinator obeys within a second and removes.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/names.h"
#include "xffl/history/run_folder.h"

namespace xffl::history {

struct Request {
  enum class Kind { kCancel, kPause, kResume };
  Kind kind = Kind::kCancel;
  std::vector<FacilityName> facilities;  // of kPause and kResume
  std::string reason;                    // for people
};

/// Leaves the request; durable. Returns the file's name.
std::string leave_request(const RunFolder& folder, const Request& request);
/// The requests there are, oldest first, by file name. A file that is none is removed and logged.
/// Throws kIo, and then has removed nothing that could be read later.
std::vector<std::pair<std::string, Request>> pending_requests(const RunFolder& folder);
void remove_request(const RunFolder& folder, const std::string& name);

}  // namespace xffl::history
