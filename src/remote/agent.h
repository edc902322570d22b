// What the user's SSH agent holds; the keys are used by libssh, this only looks.
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

/// Empty when no agent answers within a second or it holds nothing.
std::vector<AgentIdentity> agent_identities(const std::filesystem::path& socket);

}  // namespace xffl::remote
