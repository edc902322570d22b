#include "credentials.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "wire.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::remote {
namespace {

namespace fs = std::filesystem;

// The number of strings (or mpints, which have the same encoding) between the nonce and the serial.
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
// The latest time that a time_point of nanoseconds holds; a later expiry counts as no expiry.
constexpr uint64_t kLatest = 9'000'000'000;

constexpr uint8_t kRequestIdentities = 11;
constexpr uint8_t kIdentitiesAnswer = 12;
constexpr uint32_t kMaxAnswerBytes = 256u << 10;  // OpenSSH's own limit

bool receive(int fd, std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::recv(fd, bytes.data() + done, bytes.size() - done, 0);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

std::vector<std::string> parse_answer(std::string_view answer) {
  WireReader in(answer, "the SSH agent's answer");
  std::vector<std::string> identities;
  if (in.u8() != kIdentitiesAnswer) return identities;
  for (uint32_t left = in.u32(); left > 0; --left) {
    identities.emplace_back(in.string());
    in.string();  // the comment
  }
  return identities;
}

// Empty when no agent answers within a second or the agent has no identities.
std::vector<std::string> agent_identities(const fs::path& socket) {
  const UniqueFd fd = connect_to_agent(socket);
  if (!fd) return {};
  const std::string request = WireWriter().u32(1).u8(kRequestIdentities).bytes();
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return {};
  std::string length(4, '\0');
  if (!receive(fd.get(), length)) return {};
  const uint32_t size = WireReader(length, "the SSH agent's answer").u32();
  if (size == 0 || size > kMaxAnswerBytes) return {};
  std::string answer(size, '\0');
  if (!receive(fd.get(), answer)) return {};
  try {
    return parse_answer(answer);
  } catch (const Error&) {
    return {};  // a malformed answer counts as an empty agent
  }
}

std::vector<fs::path> default_keys() {
  const char* home = std::getenv("HOME");
  if (home == nullptr) return {};
  const fs::path folder = fs::path(home) / ".ssh";
  return {folder / "id_ed25519", folder / "id_ecdsa", folder / "id_rsa"};
}

// A text that changes when a program replaces or rewrites the file.
std::string file_stamp(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return path.string() + " absent\n";
  return path.string() + " " + std::to_string(info.st_size) + " " + std::to_string(info.st_ino) +
         " " + std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec) +
         " " + std::to_string(info.st_mode & 077) + "\n";
}

// A file that exists() cannot examine (in an offline home folder) counts as absent.
bool is_present(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

KeyFile read_key_file(const fs::path& key) {
  KeyFile file{key, std::nullopt, std::nullopt, ""};
  struct stat info {};
  if (::stat(key.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    file.problem = "the key " + key.string() + " is readable by other users: run `chmod 600` on it";
    return file;
  }
  const fs::path certificate = key.string() + "-cert.pub";
  if (!is_present(certificate)) return file;
  file.certificate_file = certificate;
  try {
    file.certificate = read_certificate(certificate);
  } catch (const Error& error) {  // the user may be renewing the certificate
    file.problem = error.what();
  }
  return file;
}

std::optional<Certificate> certificate_of(const std::string& identity) {
  try {
    return parse_certificate(identity, "a certificate in the SSH agent");
  } catch (const Error&) {
    return std::nullopt;  // the server may still accept the identity
  }
}

bool is_expired(const std::optional<Certificate>& certificate, Clock::UtcTime now) {
  return certificate && certificate->valid_before && *certificate->valid_before <= now;
}

std::string until(const Certificate& certificate) {
  return certificate.valid_before ? "until " + format_utc(*certificate.valid_before)
                                  : std::string("that does not expire");
}

}  // namespace

UniqueFd connect_to_agent(const fs::path& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.empty() || socket.native().size() >= sizeof address.sun_path) return {};
  std::memcpy(address.sun_path, socket.c_str(), socket.native().size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{.tv_sec = 1, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return {};
  return fd;
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
  in.u64();  // the start of the validity
  if (const uint64_t end = in.u64(); end <= kLatest)
    certificate.valid_before = Clock::UtcTime(std::chrono::seconds(end));
  return certificate;
}

Certificate read_certificate(const fs::path& path) {
  const auto key = parse_public_key(read_file(path, 1u << 20));
  const auto certificate = key ? parse_certificate(key->blob, path.string()) : std::nullopt;
  if (!certificate)
    throw Error(ErrorKind::kCorrupt, path.string() +
                                         " is not an OpenSSH certificate: expected a line such as "
                                         "'ssh-ed25519-cert-v01@openssh.com AAAA...'");
  return *certificate;
}

Credentials find_credentials(const SshSettings& settings) {
  Credentials found;
  found.agent_first = settings.keys.empty();
  std::string stamp;
  for (const fs::path& key : settings.keys.empty() ? default_keys() : settings.keys) {
    stamp += file_stamp(key) + file_stamp(key.string() + "-cert.pub");
    if (is_present(key)) found.files.push_back(read_key_file(key));
  }
  const char* socket = std::getenv("SSH_AUTH_SOCK");
  if (settings.agent && socket != nullptr) found.identities = agent_identities(socket);
  if (!found.identities.empty()) found.agent = socket;
  for (const std::string& identity : found.identities) stamp += sha256_hex(identity);
  found.stamp = sha256_hex(stamp);
  return found;
}

std::string agent_advice(const SshSettings& settings) {
  if (!settings.agent) return "";
  const char* socket = std::getenv("SSH_AUTH_SOCK");
  if (socket == nullptr || *socket == '\0')
    return "; this process has no SSH agent: to use one, start xffl again with its SSH_AUTH_SOCK";
  const std::string name = log::printable(socket, 200);
  return "; this process asks only the SSH agent at " + name +
         ", and a later log-in has another one: set SSH_AUTH_SOCK=" + name +
         " for the command that adds the key, or start xffl again with the other agent";
}

std::string KeyFile::unusable(Clock::UtcTime now) const {
  if (!problem.empty() || !is_expired(certificate, now)) return problem;
  return "the certificate " + certificate_file->string() + " expired at " +
         format_utc(*certificate->valid_before);
}

bool Credentials::usable(Clock::UtcTime now) const {
  for (const KeyFile& file : files)
    if (file.unusable(now).empty()) return true;
  for (const std::string& identity : identities)
    if (!is_expired(certificate_of(identity), now)) return true;
  return false;
}

std::string Credentials::unusable(Clock::UtcTime now) const {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : "; ") + part;
  };
  for (const KeyFile& file : files) add(file.unusable(now));
  for (const std::string& identity : identities) {
    const auto certificate = certificate_of(identity);
    if (is_expired(certificate, now))
      add("the agent's certificate '" + log::printable(certificate->key_id, 100) + "' expired at " +
          format_utc(*certificate->valid_before));
  }
  return text;
}

std::string Credentials::describe() const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (const KeyFile& file : files) {
    std::string part = file.key.string();
    if (file.certificate) {
      part += " with a certificate " + until(*file.certificate);
      std::string names;
      for (const std::string& name : file.certificate->principals)
        names += (names.empty() ? "" : ", ") + log::printable(name, 60);
      if (!names.empty()) part += " for the user " + names;
    }
    add(part);
  }
  if (!identities.empty())
    add("the agent's " + std::to_string(identities.size()) +
        (identities.size() == 1 ? " key" : " keys"));
  return text.empty() ? "no key" : text;
}

std::optional<Clock::UtcTime> credential_expiry(const SshSettings& settings) {
  const Credentials found = find_credentials(settings);
  std::optional<Clock::UtcTime> agent_end;
  bool agent_has_certificate = false;
  for (const std::string& identity : found.identities) {
    const auto certificate = certificate_of(identity);
    if (!certificate) continue;
    if (!certificate->valid_before) return std::nullopt;
    agent_end = std::max(agent_end, certificate->valid_before);
    agent_has_certificate = true;
  }
  if (found.agent_first && agent_has_certificate) return agent_end;
  // The latest expiry counts: a log-in skips expired keys.
  std::optional<Clock::UtcTime> end;
  for (const KeyFile& file : found.files) {
    if (!file.problem.empty()) continue;  // log-ins never offer this key
    if (!file.certificate || !file.certificate->valid_before) return std::nullopt;
    end = std::max(end, file.certificate->valid_before);
  }
  return end ? end : agent_end;
}

}  // namespace xffl::remote
