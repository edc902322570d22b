// OpenSSH user certificates and public keys: what they say, read from their bytes.
//
// Source: OpenSSH's PROTOCOL.certkeys. Signatures are not checked here: the server does that; this
// reads what a person wants to know before the server refuses.
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
  std::vector<std::string> principals;  // the user names that it is good for; empty: all
  Clock::UtcTime valid_after;
  std::optional<Clock::UtcTime> valid_before;  // empty: for ever
};

/// "type base64 comment": one line of a *.pub file or, after its host names, of known_hosts.
struct PublicKey {
  std::string type;
  std::string blob;

  bool operator==(const PublicKey&) const = default;
  std::string line() const;  // "type base64"
};

/// Empty for what is not a public key; the type must be the blob's own.
std::optional<PublicKey> parse_public_key(std::string_view line);

/// Empty when `blob` is a plain public key. Throws kCorrupt naming `origin`.
std::optional<Certificate> parse_certificate(std::string_view blob, std::string_view origin);

/// Reads "<key>-cert.pub". Throws kNotFound, kCorrupt.
Certificate read_certificate(const std::filesystem::path& path);

}  // namespace xffl::remote
