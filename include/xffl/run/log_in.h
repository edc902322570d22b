// How a person reaches a coordinator that has no terminal: `xffl login F` asks on its own terminal
// what a facility asks, and the coordinator, which keeps the connection, gets the answers.
//
// They meet at runs/0003/login.sock, which only this user may use. Nothing of the answers is kept
// or written anywhere.
#pragma once

#include "xffl/base/names.h"
#include "xffl/history/run_folder.h"
#include "xffl/remote/ssh.h"

namespace xffl::run {

/// Has the coordinator of the run log in to `facility`, with what `ask` answers. False when no
/// coordinator is there. Throws what the coordinator met: kAuth, kRemote, kNotFound. Blocks.
bool log_in_through_coordinator(const history::RunFolder& folder, const FacilityName& facility,
                                const remote::Ask& ask);

}  // namespace xffl::run
