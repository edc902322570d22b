// SSH's encodings: the wire (RFC 4251 section 5), base64, and the text of public keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace xffl::remote {

/// Reads from `bytes`, which must outlive the reader and the results of string(). Throws kCorrupt
/// with `origin` when the bytes end early.
class WireReader {
 public:
  WireReader(std::string_view bytes, std::string_view origin) : rest_(bytes), origin_(origin) {}

  uint8_t u8();
  uint32_t u32();
  uint64_t u64();
  std::string_view string();
  std::string_view rest() const { return rest_; }
  bool done() const { return rest_.empty(); }

 private:
  std::string_view take(size_t count);

  std::string_view rest_;
  std::string_view origin_;
};

class WireWriter {
 public:
  WireWriter& u8(uint8_t value);
  WireWriter& u32(uint32_t value);
  WireWriter& u64(uint64_t value);
  WireWriter& string(std::string_view text);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

std::string base64_encode(std::string_view bytes, bool padding = true);
/// Empty when `text` is not base64.
std::optional<std::string> base64_decode(std::string_view text);

/// "SHA256:..." of a public key's blob, like ssh-keygen -l.
std::string key_fingerprint(std::string_view blob);

/// "type base64 comment": one line of a *.pub file or, after its host names, of known_hosts.
struct PublicKey {
  std::string type;
  std::string blob;

  bool operator==(const PublicKey&) const = default;
  std::string line() const;  // "type base64"
};

/// Empty when `line` is not a public key, or its type differs from the blob's type.
std::optional<PublicKey> parse_public_key(std::string_view line);

}  // namespace xffl::remote
