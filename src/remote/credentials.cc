#include "credentials.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "wire.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::remote {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> default_keys() {
  const char* home = std::getenv("HOME");
  if (home == nullptr) return {};
  const fs::path folder = fs::path(home) / ".ssh";
  return {folder / "id_ed25519", folder / "id_ecdsa", folder / "id_rsa"};
}

// Changes when a file is replaced or rewritten.
std::string file_stamp(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return path.string() + " absent\n";
  return path.string() + " " + std::to_string(info.st_size) + " " + std::to_string(info.st_ino) +
         " " + std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec) +
         " " + std::to_string(info.st_mode & 077) + "\n";
}

// A file that cannot be examined (a home folder that is offline) counts as absent.
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
  } catch (const Error& error) {  // it may be incomplete while the user renews it
    file.problem = error.what();
  }
  return file;
}

std::optional<Certificate> certificate_of(const AgentIdentity& identity) {
  try {
    return parse_certificate(identity.blob, "a certificate in the SSH agent");
  } catch (const Error&) {
    return std::nullopt;  // the server may still accept it
  }
}

std::string until(const Certificate& certificate) {
  return certificate.valid_before ? "until " + format_utc(*certificate.valid_before)
                                  : std::string("that does not expire");
}

}  // namespace

bool is_expired(const std::optional<Certificate>& certificate, Clock::UtcTime now) {
  return certificate && certificate->valid_before && *certificate->valid_before <= now;
}

Credentials find_credentials(const SshSettings& settings) {
  Credentials found;
  found.agent_first = settings.keys.empty();
  std::string stamp;
  for (const fs::path& key : settings.keys.empty() ? default_keys() : settings.keys) {
    stamp += file_stamp(key) + file_stamp(key.string() + "-cert.pub");
    if (is_present(key)) found.files.push_back(read_key_file(key));
  }
  if (settings.agent) found.identities = agent_identities(agent_socket());
  if (!found.identities.empty()) found.agent = agent_socket();
  for (const AgentIdentity& identity : found.identities) stamp += sha256_hex(identity.blob);
  found.stamp = sha256_hex(stamp);
  return found;
}

bool Credentials::usable(Clock::UtcTime now) const {
  for (const KeyFile& file : files)
    if (file.problem.empty() && !is_expired(file.certificate, now)) return true;
  for (const AgentIdentity& identity : identities)
    if (!is_expired(certificate_of(identity), now)) return true;
  return false;
}

std::string Credentials::expired(Clock::UtcTime now) const {
  std::string text;
  for (const KeyFile& file : files)
    if (!file.problem.empty()) text += (text.empty() ? "" : "; ") + file.problem;
  for (const KeyFile& file : files)
    if (is_expired(file.certificate, now))
      text += (text.empty() ? "" : "; ") + ("the certificate " + file.certificate_file->string()) +
              " expired at " + format_utc(*file.certificate->valid_before);
  for (const AgentIdentity& identity : identities) {
    const auto certificate = certificate_of(identity);
    if (is_expired(certificate, now))
      text += (text.empty() ? "" : "; ") +
              ("the agent's certificate '" + log::printable(certificate->key_id, 100)) +
              "' expired at " + format_utc(*certificate->valid_before);
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
  for (const AgentIdentity& identity : found.identities) {
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
    if (!file.problem.empty()) continue;  // never offered
    if (!file.certificate || !file.certificate->valid_before) return std::nullopt;
    end = std::max(end, file.certificate->valid_before);
  }
  return end ? end : agent_end;
}

}  // namespace xffl::remote
