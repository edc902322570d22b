#include "certificate.h"

#include <map>

#include "wire.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::remote {
namespace {

// The number of strings (or mpints, which are encoded alike) between the nonce and the serial.
const std::map<std::string_view, int> kKeyFields = {
    {"ssh-ed25519-cert-v01@openssh.com", 1},
    {"ssh-rsa-cert-v01@openssh.com", 2},
    {"ssh-dss-cert-v01@openssh.com", 4},
    {"ecdsa-sha2-nistp256-cert-v01@openssh.com", 2},
    {"ecdsa-sha2-nistp384-cert-v01@openssh.com", 2},
    {"ecdsa-sha2-nistp521-cert-v01@openssh.com", 2},
    {"sk-ssh-ed25519-cert-v01@openssh.com", 2},
    {"sk-ecdsa-sha2-nistp256-cert-v01@openssh.com", 3},
};
constexpr uint32_t kUserCertificate = 1;
// The latest time that a time_point of nanoseconds holds; a later expiry counts as none.
constexpr uint64_t kLatest = 9'000'000'000;

std::optional<Clock::UtcTime> time_of(uint64_t seconds) {
  if (seconds > kLatest) return std::nullopt;
  return Clock::UtcTime(std::chrono::seconds(seconds));
}

}  // namespace

std::string PublicKey::line() const { return type + " " + base64_encode(blob); }

std::optional<PublicKey> parse_public_key(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  PublicKey key{std::string(line.substr(0, space)), {}};
  line.remove_prefix(space + 1);
  const auto blob = base64_decode(line.substr(0, line.find_first_of(" \r\n")));
  if (!blob) return std::nullopt;
  try {
    if (WireReader(*blob, "public key").string() != key.type) return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
  key.blob = *blob;
  return key;
}

std::optional<Certificate> parse_certificate(std::string_view blob, std::string_view origin) {
  WireReader in(blob, origin);
  const auto fields = kKeyFields.find(in.string());
  if (fields == kKeyFields.end()) return std::nullopt;
  in.string();  // nonce
  for (int i = 0; i < fields->second; ++i) in.string();
  in.u64();  // serial
  if (in.u32() != kUserCertificate)
    throw Error(ErrorKind::kCorrupt,
                std::string(origin) + " is a host certificate, not a user certificate");
  Certificate certificate;
  certificate.key_id = in.string();
  WireReader principals(in.string(), origin);
  while (!principals.done()) certificate.principals.emplace_back(principals.string());
  certificate.valid_after = time_of(in.u64()).value_or(Clock::UtcTime::max());
  certificate.valid_before = time_of(in.u64());
  return certificate;
}

Certificate read_certificate(const std::filesystem::path& path) {
  const auto key = parse_public_key(read_file(path, 1u << 20));
  const auto certificate = key ? parse_certificate(key->blob, path.string()) : std::nullopt;
  if (!certificate)
    throw Error(ErrorKind::kCorrupt, path.string() +
                                         " is not an OpenSSH certificate: expected a line such as "
                                         "'ssh-ed25519-cert-v01@openssh.com AAAA...'");
  return *certificate;
}

}  // namespace xffl::remote
