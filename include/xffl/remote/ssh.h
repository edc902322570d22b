// Facilities behind SSH: log-in nodes, and hosts that only transfer data.
//
// All threads share one connection for each host. Host keys are pinned in a file of the project
// before any authentication. ssh_config is not read, no agent or port is forwarded, and only
// log_in() prompts for a password. After a refused log-in the session retries only when the
// credential has changed (its file, or the agent's identities).
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
  std::chrono::milliseconds keepalive{10'000};  // without data for so long: send a keepalive
  std::chrono::milliseconds silence{30'000};    // without data for so long: the link is dead
  std::chrono::milliseconds operation{60'000};  // a file operation without progress
  bool operator==(const SshTimeouts&) const = default;
};

struct SshSettings {
  std::string facility;        // for messages: "xffl trust <facility>"
  std::vector<SshHost> hosts;  // equivalent log-in nodes, tried in order
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

/// The rate limits of new connections: see connector.h. Sessions that share them count
/// together.
class ConnectionLimits;
std::shared_ptr<ConnectionLimits> make_connection_limits();

/// Connects on first use, and reconnects after a lost link, with backoff and within the host's
/// limits. `ask` answers keyboard-interactive prompts; after two refusals the session stops
/// prompting. The answers are not kept.
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
/// The current key of `host`, without authentication, through `settings.jump`, whose keys must be
/// trusted already. `ask`, which may be empty, answers the prompts of the jump hosts. Throws
/// kRemote, kAuth.
HostKey fetch_host_key(const SshSettings& settings, const SshHost& host, const Ask& ask = {});
/// The pinned keys of `host`; empty when it is not trusted yet.
std::vector<HostKey> trusted_keys(const SshSettings& settings, const SshHost& host);
/// Replaces the pinned keys of key.host by `key`; atomic, mode 0600.
void trust(const SshSettings& settings, const HostKey& key);

/// The expiry of the credential that a log-in uses; empty when it does not expire.
std::optional<Clock::UtcTime> credential_expiry(const SshSettings& settings);

/// Returns a connected session; the log-in may use keyboard-interactive. The answers are not kept.
/// Throws kAuth when the log-in is refused.
std::shared_ptr<Session> log_in(const SshSettings& settings, const Ask& ask);
/// Logs an existing session of make_ssh_session() in; its users then continue. No effect on a
/// connected session or on a session of another kind.
void log_in(Session& session, const Ask& ask);

}  // namespace xffl::remote
