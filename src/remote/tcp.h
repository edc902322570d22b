// TCP connections whose keepalive detects a dead peer within 30 s.
#pragma once

#include "xffl/base/file.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

/// Returns a connected, non-blocking socket with keepalive, TCP_USER_TIMEOUT, TCP_NODELAY, and
/// little unsent data in the kernel, so that a short command does not wait behind a long upload.
/// Tries every address of the name within timeouts.connect. Throws kRemote.
UniqueFd connect_tcp(const SshHost& host, const SshTimeouts& timeouts);

}  // namespace xffl::remote
