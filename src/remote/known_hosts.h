// The project's pinned host keys: OpenSSH's known_hosts lines, "host[,host...] type base64".
//
// Names are compared as they stand: no patterns, no hashed names. Lines that start with '@' or '#'
// are not ours and pin nothing; they are kept.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "certificate.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

/// "host" for port 22, else "[host]:port".
std::string host_label(const SshHost& host);

/// Empty when the file or the host's lines are absent. Throws kIo, kCorrupt (not a known_hosts).
std::vector<PublicKey> pinned_keys(const std::filesystem::path& file, const SshHost& host);

/// Replaces the lines of `host` by one; atomic, mode 0600, creates the folder.
void pin_key(const std::filesystem::path& file, const SshHost& host, const PublicKey& key);

}  // namespace xffl::remote
