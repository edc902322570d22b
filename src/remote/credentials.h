// The keys and certificates of a log-in, and their validity: key files and the SSH agent.
//
// Sources: OpenSSH's PROTOCOL.certkeys; draft-miller-ssh-agent, section 3.5. The server checks the
// signatures of certificates; libssh uses the agent's keys.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/file.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

// A user certificate. Messages name the principals and the validity.
struct Certificate {
  std::string key_id;
  std::vector<std::string> principals;         // user names; empty: all
  std::optional<Clock::UtcTime> valid_before;  // empty: no expiry
};

/// Empty when `blob` is a plain public key. Throws kCorrupt naming `origin`.
std::optional<Certificate> parse_certificate(std::string_view blob, std::string_view origin);

/// Reads "<key>-cert.pub". Throws kNotFound, kCorrupt.
Certificate read_certificate(const std::filesystem::path& path);

struct KeyFile {
  std::filesystem::path key;
  std::optional<std::filesystem::path> certificate_file;
  std::optional<Certificate> certificate;
  std::string problem;  // the reason why log-ins offer neither file, such as permissions

  /// `problem`, or the expiry of the certificate before `now`; empty: log-ins offer the key.
  std::string unusable(Clock::UtcTime now) const;
};

struct Credentials {
  std::vector<KeyFile> files;   // existing files only
  std::filesystem::path agent;  // socket; empty when the agent is disabled or has no identities
  std::vector<std::string> identities;  // public keys and certificates of the agent
  bool agent_first = false;
  std::string stamp;  // changes with the files and the agent's identities

  /// True when a key or certificate has not expired.
  bool usable(Clock::UtcTime now) const;
  /// The unusable keys and certificates at `now`, with the reasons; empty: none.
  std::string unusable(Clock::UtcTime now) const;
  /// Describes the credentials: "~/.ssh/id_x with a certificate until ..., the agent's 2 keys".
  std::string describe() const;
};

/// A connection to an SSH agent, whose receives and sends last a second at most; empty when no
/// agent answers there within a second.
UniqueFd connect_to_agent(const std::filesystem::path& socket);

/// Reads the files and queries the agent; no network, no errors.
Credentials find_credentials(const SshSettings& settings);

/// The end of a message about a log-in: the agent that this process asks, which a later log-in of
/// the user replaces for the user's shells only. The same at each call; empty without `agent`.
std::string agent_advice(const SshSettings& settings);

}  // namespace xffl::remote
