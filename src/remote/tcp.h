// TCP to a log-in node, set so that the kernel gives a dead peer up within 30 s.
#pragma once

#include "xffl/base/file.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

/// A connected, non-blocking socket: keepalive, TCP_USER_TIMEOUT, no delay, and little unsent data
/// in the kernel, so that a short command does not wait behind a long upload. Tries every address
/// of the name within timeouts.connect. Throws kRemote.
UniqueFd connect_tcp(const SshHost& host, const SshTimeouts& timeouts);

}  // namespace xffl::remote
