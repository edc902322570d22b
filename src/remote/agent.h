// Lists the identities of the user's SSH agent. libssh itself uses the keys.
//
// Source: draft-miller-ssh-agent, section 3.5.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace xffl::remote {

struct AgentIdentity {
  std::string blob;  // the public key or certificate
  std::string comment;
};

/// The socket named by SSH_AUTH_SOCK; empty when there is none.
std::filesystem::path agent_socket();

/// Empty when no agent answers within a second or the agent has no identities.
std::vector<AgentIdentity> agent_identities(const std::filesystem::path& socket);

}  // namespace xffl::remote
