// The keys and certificates of a log-in, and their validity.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "agent.h"
#include "certificate.h"
#include "xffl/base/clock.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

struct KeyFile {
  std::filesystem::path key;
  std::optional<std::filesystem::path> certificate_file;
  std::optional<Certificate> certificate;
  std::string problem;  // why neither is offered, such as file permissions
};

struct Credentials {
  std::vector<KeyFile> files;   // existing files only
  std::filesystem::path agent;  // socket; empty when the agent is disabled or has no identities
  std::vector<AgentIdentity> identities;
  bool agent_first = false;
  std::string stamp;  // changes with the files and the agent's identities

  /// True when a key or certificate has not expired.
  bool usable(Clock::UtcTime now) const;
  /// Describes the certificates that are unreadable or have expired at `now`; empty when there are
  /// none.
  std::string expired(Clock::UtcTime now) const;
  /// Describes the credentials: "~/.ssh/id_x with a certificate until ..., the agent's 2 keys".
  std::string describe() const;
};

/// Reads the files and queries the agent; no network, no errors.
Credentials find_credentials(const SshSettings& settings);

/// True for an expired certificate.
bool is_expired(const std::optional<Certificate>& certificate, Clock::UtcTime now);

}  // namespace xffl::remote
