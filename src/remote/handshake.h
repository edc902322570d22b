// From a socket to a logged-in SSH session: key exchange, host key check, user authentication.
//
// How it works: drive() makes non-blocking libssh calls and polls until its own deadline, because
// libssh ignores its time-out after the connection. check_host_key() compares the host key with the
// pinned keys before authentication; libssh itself would continue after a mismatch. xffl reads
// neither ssh_config nor ~/.ssh/known_hosts.
#pragma once

#include <libssh/libssh.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "credentials.h"
#include "wire.h"
#include "xffl/base/file.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

struct SessionDeleter {
  void operator()(ssh_session session) const;
};
using SessionPtr = std::unique_ptr<ssh_session_struct, SessionDeleter>;

/// The last error of a session, printable.
std::string libssh_error(ssh_session session);

/// "xffl <command> <facility>", for messages.
std::string facility_command(const std::string& command, const SshSettings& settings);

/// Calls `step`, a non-blocking libssh call, until the result differs from `again`. Throws kRemote
/// after `timeout`: "no answer ... while `activity`".
int drive(ssh_session session, std::chrono::milliseconds timeout, int again,
          const std::string& activity, const std::function<int()>& step);

/// Exchanges keys over `socket`, which the session then owns, and accepts only the host key
/// algorithms of `wanted` (all when empty). Throws kRemote; kAuth when the host has no key of these
/// types.
SessionPtr exchange_keys(const SshSettings& settings, const SshHost& host, UniqueFd socket,
                         const std::vector<PublicKey>& wanted);

/// The host key that the server proved in the key exchange.
PublicKey server_key(ssh_session session);

/// Throws kAuth unless `shown` is among `pinned`. The message has the old and the new fingerprints
/// and the command that trusts the new key.
void check_host_key(const SshSettings& settings, const SshHost& host, const PublicKey& shown,
                    const std::vector<PublicKey>& pinned);

/// Offers the unexpired credentials in order; with `ask`, keyboard-interactive and a password, too.
/// Throws kAuth when the host refuses all credentials, kRemote for a lost link.
void authenticate(ssh_session session, const SshSettings& settings, const SshHost& host,
                  const Credentials& credentials, const Ask* ask);

}  // namespace xffl::remote
