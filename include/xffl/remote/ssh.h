// Facilities behind SSH: log-in nodes, and hosts that only move data.
//
// One connection per host is kept and shared by every thread. Host keys are pinned in a file of the
// project before anything is authenticated; nothing is read from ssh_config, no agent or port is
// forwarded, and no password is asked for except by log_in() on a terminal. After a refused log-in
// no further one is tried until the credential has changed (its file, or what the agent holds).
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

/// When a link counts as dead. The defaults see one within 45 s; tests have less patience.
struct SshTimeouts {
  std::chrono::milliseconds connect{10'000};    // TCP, for each host
  std::chrono::milliseconds log_in{30'000};     // key exchange and authentication, each
  std::chrono::milliseconds keepalive{10'000};  // nothing heard for so long: ask the server
  std::chrono::milliseconds silence{30'000};    // nothing heard for so long: the link is dead
  std::chrono::milliseconds operation{60'000};  // an answer about files, without progress
};

struct SshSettings {
  std::string facility;        // its name in messages: "xffl trust <facility>"
  std::vector<SshHost> hosts;  // equivalent log-in nodes, tried in order
  std::string user;
  std::vector<SshHost> jump;                // hosts to go through, first one first
  std::vector<std::filesystem::path> keys;  // private keys; "<key>-cert.pub" beside one is its
                                            // certificate. Empty: the agent, then ~/.ssh/id_*
  bool agent = true;                        // also ask SSH_AUTH_SOCK
  std::filesystem::path known_hosts;  // the project's; OpenSSH format, lines "host keytype key"
  bool shell = true;                  // false: the host speaks SFTP only
  int streams = 4;                    // channels of one upload, at most
  std::string renew;                  // what a person types for a new credential; for messages
  SshTimeouts timeouts;
};

/// Asks a person: `ask(prompt, echo)`. Throws kAuth when nobody answers.
using Ask = std::function<std::string(const std::string& prompt, bool echo)>;

/// How often hosts may be connected to: see connection_limits.h. Sessions that share it are one
/// visitor to a host.
class ConnectionLimits;
std::shared_ptr<ConnectionLimits> make_connection_limits();

/// Connects on first use and again, with backoff and within the host's limits, after a lost link.
/// With `ask` a host may also ask a person (keyboard-interactive), who is left alone after two
/// refusals; nothing of the answers is kept.
std::shared_ptr<Session> make_ssh_session(const SshSettings& settings,
                                          std::shared_ptr<ConnectionLimits> limits = nullptr,
                                          Ask ask = {});

/// "renew it", with the command where the settings name one.
std::string renewal(const SshSettings& settings);

/// How a message of kAuth begins when a host shows another key than the pinned ones.
inline constexpr std::string_view kHostKeyChanged = "HOST KEY CHANGED";

struct HostKey {
  SshHost host;
  std::string type;         // "ssh-ed25519"
  std::string fingerprint;  // "SHA256:..."
  std::string line;         // as it would stand in known_hosts
};
/// What `host` shows now, without authenticating; through `settings.jump`, whose keys must be
/// trusted already; `ask`, which may be empty, answers what they ask. Throws kRemote, kAuth.
HostKey fetch_host_key(const SshSettings& settings, const SshHost& host, const Ask& ask = {});
/// The pinned keys of `host`; empty when it is not trusted yet.
std::vector<HostKey> trusted_keys(const SshSettings& settings, const SshHost& host);
/// Replaces the pinned keys of key.host by `key`; atomic, mode 0600.
void trust(const SshSettings& settings, const HostKey& key);

/// The end of the credential's validity that a log-in would use; empty when it does not expire.
std::optional<Clock::UtcTime> credential_expiry(const SshSettings& settings);

/// A session whose first connection may use keyboard-interactive; nothing of the answers is kept.
/// Throws kAuth when it is refused.
std::shared_ptr<Session> log_in(const SshSettings& settings, const Ask& ask);
/// The same for a session of make_ssh_session() that waits for a person; whoever uses it goes on.
/// Nothing is asked when it is connected. No effect on sessions of other kinds.
void log_in(Session& session, const Ask& ask);

}  // namespace xffl::remote
