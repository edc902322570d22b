// A job that stays: one file in its attempt's folder, stay.<state>, is all that it and the
// coordinator tell each other. Each changes it by rename, so of two only one succeeds.
//
//   planned   the job, before it trains: it will offer itself if all goes well
//   offered   the job, once it has reported: it waits for the facility's next attempt
//   taken     the coordinator: the job runs the job.sh of the next attempt's folder
//   closed    either: the job ends, or will
//
// Nothing in the file is read. Whose job it is, is the coordinator's knowledge; the owner of the
// claim beside the file can only speak against it.
#pragma once

#include <string>
#include <vector>

#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

enum class Taking {
  kNone,    // no offer, nor will there be one
  kComing,  // the job has not come to its offer yet
  kTaken,   // now, or by an earlier command
};

/// Puts its stdin as job.sh into `next`, then takes the offer. `waits`: an offer that is yet to
/// come may still come; else it is refused.
std::vector<std::string> take_command(const Offer& offer, const RemotePath& next, bool waits);
/// What it printed. Throws kRemote for anything else: it is in doubt whether the offer was taken.
Taking read_taking(const remote::CommandResult& answer);
/// Closes an offer that is there or yet to come; prints nothing.
std::vector<std::string> decline_command(const Offer& offer);
/// Whose presence says that the offer was taken.
RemotePath taken_file(const Offer& offer);

}  // namespace xffl::submit
