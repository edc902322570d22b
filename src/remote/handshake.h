// From a socket to a logged-in SSH session: key exchange, the host's identity, then the user's.
//
// How it works: libssh's non-blocking calls with our own poll and deadline, because libssh ignores
// its timeout once connected. The host key is compared with the pinned ones before anything is
// authenticated; libssh itself would go on after a mismatch. Nothing is read from ssh_config or
// ~/.ssh/known_hosts.
#pragma once

#include <libssh/libssh.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "certificate.h"
#include "credentials.h"
#include "xffl/base/file.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

struct SessionDeleter {
  void operator()(ssh_session session) const;
};
using SessionPtr = std::unique_ptr<ssh_session_struct, SessionDeleter>;

/// Calls `step`, a non-blocking function of libssh, until it returns something else than `again`.
/// Throws kRemote after `patience`: "no answer ... while `doing`".
int drive(ssh_session session, std::chrono::milliseconds patience, int again,
          const std::string& doing, const std::function<int()>& step);

/// Exchanges keys over `socket`, which is taken over, offering only the host key algorithms of
/// `wanted` (all when empty). Throws kRemote; kAuth when the host has no key of these types.
SessionPtr exchange_keys(const SshSettings& settings, const SshHost& host, UniqueFd socket,
                         const std::vector<PublicKey>& wanted);

/// The key that the host proved to hold.
PublicKey server_key(ssh_session session);

/// Throws kAuth with the old and the new fingerprints, and the command that trusts the new one,
/// unless `shown` is among `pinned`.
void check_host_key(const SshSettings& settings, const SshHost& host, const PublicKey& shown,
                    const std::vector<PublicKey>& pinned);

/// Offers the credentials in order, skipping what has expired; with `ask`, keyboard-interactive
/// too. Throws kAuth when all are refused, kRemote for a lost link.
void authenticate(ssh_session session, const SshSettings& settings, const SshHost& host,
                  const Credentials& credentials, const Ask* ask);

}  // namespace xffl::remote
