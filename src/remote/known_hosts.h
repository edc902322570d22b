// The project's pinned host keys: OpenSSH's known_hosts lines, "host[,host...] type base64".
//
// pinned_keys() compares names literally: no patterns, no hashed names. Lines that start with '@'
// or '#' pin no key, and pin_key() keeps these lines.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "wire.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

/// "host" for port 22, else "[host]:port".
std::string host_label(const SshHost& host);

/// The pinned keys of `host`; empty when the file or the host's lines are absent. Throws kIo,
/// kCorrupt (a line without a public key).
std::vector<PublicKey> pinned_keys(const std::filesystem::path& file, const SshHost& host);

/// Replaces the lines of `host` by one line; atomic, mode 0600, creates the folder.
void pin_key(const std::filesystem::path& file, const SshHost& host, const PublicKey& key);
/// Adds a line of `host` and keeps all others; otherwise like pin_key().
void pin_also(const std::filesystem::path& file, const SshHost& host, const PublicKey& key);

}  // namespace xffl::remote
