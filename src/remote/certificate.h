// Parses OpenSSH user certificates and public keys.
//
// Source: OpenSSH's PROTOCOL.certkeys. The server checks the signatures; this parser reads the
// principals and the validity for messages.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/clock.h"

namespace xffl::remote {

struct Certificate {
  std::string key_id;
  std::vector<std::string> principals;  // user names; empty: all
  Clock::UtcTime valid_after;
  std::optional<Clock::UtcTime> valid_before;  // empty: no expiry
};

/// "type base64 comment": one line of a *.pub file or, after its host names, of known_hosts.
struct PublicKey {
  std::string type;
  std::string blob;

  bool operator==(const PublicKey&) const = default;
  std::string line() const;  // "type base64"
};

/// Empty when `line` is not a public key, or its type differs from the blob's type.
std::optional<PublicKey> parse_public_key(std::string_view line);

/// Empty when `blob` is a plain public key. Throws kCorrupt naming `origin`.
std::optional<Certificate> parse_certificate(std::string_view blob, std::string_view origin);

/// Reads "<key>-cert.pub". Throws kNotFound, kCorrupt.
Certificate read_certificate(const std::filesystem::path& path);

}  // namespace xffl::remote
