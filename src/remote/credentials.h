// The keys and certificates that a log-in would offer, and until when they are good.
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
  std::string problem;  // why nothing of the two is offered: others may read it, say
};

struct Credentials {
  std::vector<KeyFile> files;   // those that exist
  std::filesystem::path agent;  // its socket; empty when it is not to be asked or holds nothing
  std::vector<AgentIdentity> identities;
  bool agent_first = false;
  std::string stamp;  // changes when a file or what the agent holds changes

  /// True when there is something to offer that has not expired.
  bool usable(Clock::UtcTime now) const;
  /// The certificates that cannot be read or whose time is over at `now`, for a person: empty when
  /// there are none.
  std::string expired(Clock::UtcTime now) const;
  /// What there is, for a person: "~/.ssh/id_x with a certificate until ..., the agent (2 keys)".
  std::string describe() const;
};

/// Looks at files and the agent; no network. No errors.
Credentials find_credentials(const SshSettings& settings);

/// True for a certificate whose end has passed.
bool is_expired(const std::optional<Certificate>& certificate, Clock::UtcTime now);

}  // namespace xffl::remote
