// Facilities behind SSH: login nodes, and hosts that only transfer data.
//
// All threads share one connection for each host. A session authenticates only at hosts whose keys
// a file of the project pins. The session reads no ssh_config, forwards no agent or port, and
// prompts the user only through an Ask. A refused log-in is repeated once at its host, 5 minutes
// later, and then only when the credential (its file, or the agent's identities) has changed.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

struct SshHost {
  std::string name;  // a DNS name or an address
  int port = 22;
  bool operator==(const SshHost&) const = default;
};

/// The defaults detect a dead link within 45 s; tests use shorter times.
struct SshTimeouts {
  std::chrono::milliseconds connect{10'000};    // TCP, for each host
  std::chrono::milliseconds log_in{30'000};     // key exchange and authentication, each
  std::chrono::milliseconds keepalive{10'000};  // silence before the session sends a keepalive
  std::chrono::milliseconds silence{30'000};    // silence after which the link is dead
  std::chrono::milliseconds operation{60'000};  // a file operation without progress
  bool operator==(const SshTimeouts&) const = default;
};

struct SshSettings {
  std::string facility;        // for messages: "xffl trust <facility>"
  std::vector<SshHost> hosts;  // equivalent login nodes; the session tries them in order
  std::string user;
  std::vector<SshHost> jump;                // ProxyJump hosts, in order
  std::vector<std::filesystem::path> keys;  // private keys, each with its certificate
                                            // "<key>-cert.pub". Empty: the agent, then ~/.ssh/id_*
  bool agent = true;                        // also use the agent of SSH_AUTH_SOCK
  std::filesystem::path known_hosts;  // the project's; OpenSSH format, lines "host keytype key"
  bool shell = true;                  // false: the host speaks SFTP only
  int streams = 4;                    // maximum channels of one upload
  std::string renew;                  // the user's command for a new credential, for messages
  SshTimeouts timeouts;
  bool operator==(const SshSettings&) const = default;
};

/// Prompts the user: `ask(prompt, echo)`. Throws kAuth without an answer.
using Ask = std::function<std::string(const std::string& prompt, bool echo)>;

/// The rate limits of new connections: see connector.h. Sessions that share the limits count
/// together. A session waits up to `longest_wait` for a new connection; if the limits ask for a
/// longer wait, the call throws kRemote.
class ConnectionLimits;
std::shared_ptr<ConnectionLimits> make_connection_limits(
    std::chrono::seconds longest_wait = std::chrono::seconds(3));

/// Connects on first use, and reconnects after a lost link, with backoff and within the host's
/// limits. `ask` answers the hosts' prompts (keyboard-interactive, a password); after two refusals
/// the session stops prompting. The session does not keep the answers.
std::shared_ptr<Session> make_ssh_session(const SshSettings& settings,
                                          std::shared_ptr<ConnectionLimits> limits = nullptr,
                                          Ask ask = {});

/// The instruction to renew the credential, with the command of the settings.
std::string renewal(const SshSettings& settings);

/// The beginning of the kAuth message when a host's key differs from the pinned keys.
inline constexpr std::string_view kHostKeyChanged = "HOST KEY CHANGED";

struct HostKey {
  SshHost host;
  std::string type;         // "ssh-ed25519"
  std::string fingerprint;  // "SHA256:..."
  std::string line;         // the line for known_hosts
};
/// Fetches the current key of `host` without authentication, through the hosts of `settings.jump`.
/// The user must have trusted the jump hosts already. `ask`, which may be empty, answers the
/// prompts of the jump hosts. Throws kRemote, kAuth.
HostKey fetch_host_key(const SshSettings& settings, const SshHost& host, const Ask& ask = {});
/// The pinned keys of `host`; empty: the host is not trusted yet.
std::vector<HostKey> trusted_keys(const SshSettings& settings, const SshHost& host);
/// Replaces the pinned keys of key.host by `key`; atomic, mode 0600.
void trust(const SshSettings& settings, const HostKey& key);
/// Pins a further key of the host, for a name that leads to several nodes with keys of their own.
void trust_also(const SshSettings& settings, const HostKey& key);

/// The expiry of the credential that a log-in uses; empty: the credential does not expire.
std::optional<Clock::UtcTime> credential_expiry(const SshSettings& settings);

/// Returns a connected session; the log-in may ask the user. The session does not keep the answers.
/// Throws kAuth when the host refuses the log-in.
std::shared_ptr<Session> log_in(const SshSettings& settings, const Ask& ask);
/// Logs in for an existing session of make_ssh_session(), whose users then continue. No effect on a
/// connected session or on a session of another kind.
void log_in(Session& session, const Ask& ask);

}  // namespace xffl::remote
