#include "handshake.h"

#include <fcntl.h>
#include <poll.h>

#include <functional>
#include <set>

#include "known_hosts.h"
#include "wire.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct KeyDeleter {
  void operator()(ssh_key key) const { ssh_key_free(key); }
};
using KeyPtr = std::unique_ptr<ssh_key_struct, KeyDeleter>;

void set_option(ssh_session session, ssh_options_e option, const void* value) {
  if (ssh_options_set(session, option, value) != SSH_OK)
    throw Error(ErrorKind::kInternal,
                std::string("libssh rejects an option: ") + ssh_get_error(session));
}

// AES-GCM first: with AES instructions it costs a third of ChaCha20-Poly1305, which OpenSSH
// computes in plain C.
constexpr const char* kCiphers =
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,"
    "aes192-ctr,aes256-ctr";

// The signature algorithms of a key type.
std::string algorithms_of(const std::string& key_type) {
  return key_type == "ssh-rsa" ? "rsa-sha2-512,rsa-sha2-256" : key_type;
}

std::string trust_command(const SshSettings& settings) {
  return "xffl trust " + (settings.facility.empty() ? "<facility>" : settings.facility);
}

bool is_host_key_mismatch(const std::string& problem) {
  return problem.find("host key algo") != std::string::npos;
}

std::string libssh_error(ssh_session session) {
  return log::printable(ssh_get_error(session), 300);
}

}  // namespace

int drive(ssh_session session, std::chrono::milliseconds timeout, int again,
          const std::string& activity, const std::function<int()>& step) {
  const auto deadline = SteadyClock::now() + timeout;
  for (;;) {
    const int result = step();
    if (result != again) return result;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    if (left <= 0)
      throw Error(ErrorKind::kRemote,
                  "no answer within " + std::to_string(timeout.count()) + " ms while " + activity);
    pollfd wait{ssh_get_fd(session), POLLIN, 0};
    if (ssh_get_poll_flags(session) & SSH_WRITE_PENDING) wait.events |= POLLOUT;
    ::poll(&wait, 1, static_cast<int>(std::min<long>(left, 1000)));
  }
}

void SessionDeleter::operator()(ssh_session session) const {
  ssh_disconnect(session);
  ssh_free(session);
}

SessionPtr exchange_keys(const SshSettings& settings, const SshHost& host, UniqueFd socket,
                         const std::vector<PublicKey>& wanted) {
  SessionPtr session(ssh_new());
  if (!session) throw Error(ErrorKind::kInternal, "libssh has no memory for a session");
  ssh_session s = session.get();
  const bool no_config = false;
  set_option(s, SSH_OPTIONS_PROCESS_CONFIG, &no_config);
  set_option(s, SSH_OPTIONS_HOST, host.name.c_str());
  set_option(s, SSH_OPTIONS_USER, settings.user.c_str());
  set_option(s, SSH_OPTIONS_KNOWNHOSTS, "/dev/null");
  set_option(s, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null");
  std::string algorithms;
  for (const PublicKey& key : wanted)
    algorithms += (algorithms.empty() ? "" : ",") + algorithms_of(key.type);
  for (const auto option : {SSH_OPTIONS_CIPHERS_C_S, SSH_OPTIONS_CIPHERS_S_C})
    set_option(s, option, kCiphers);
  if (!algorithms.empty()) set_option(s, SSH_OPTIONS_HOSTKEYS, algorithms.c_str());
  const int fd = socket.release();
  set_option(s, SSH_OPTIONS_FD, &fd);
  ssh_set_blocking(s, 0);
  const std::string activity = "exchanging keys with " + host_label(host);
  if (drive(s, settings.timeouts.log_in, SSH_AGAIN, activity, [&] { return ssh_connect(s); }) !=
      SSH_OK) {
    const std::string problem = libssh_error(s);
    if (!wanted.empty() && is_host_key_mismatch(problem))
      throw Error(ErrorKind::kAuth, std::string(kHostKeyChanged) + ": " + host_label(host) +
                                        " has no key of the trusted type any more (" + problem +
                                        "); if the site announces a new key, run '" +
                                        trust_command(settings) + "'");
    throw Error(ErrorKind::kRemote, "failed while " + activity + ": " + problem);
  }
  // libssh makes the socket blocking after the connection; a full socket would block every thread.
  ::fcntl(ssh_get_fd(s), F_SETFL, ::fcntl(ssh_get_fd(s), F_GETFL) | O_NONBLOCK);
  return session;
}

PublicKey server_key(ssh_session session) {
  ssh_key raw = nullptr;
  char* text = nullptr;
  if (ssh_get_server_publickey(session, &raw) != SSH_OK)
    throw Error(ErrorKind::kRemote, "the host sent no key: " + libssh_error(session));
  const KeyPtr key(raw);
  if (ssh_pki_export_pubkey_base64(key.get(), &text) != SSH_OK)
    throw Error(ErrorKind::kRemote, "the host's key cannot be read");
  const std::string blob = base64_decode(text).value_or("");
  ssh_string_free_char(text);
  return {std::string(WireReader(blob, "host key").string()), blob};
}

void check_host_key(const SshSettings& settings, const SshHost& host, const PublicKey& shown,
                    const std::vector<PublicKey>& pinned) {
  if (std::find(pinned.begin(), pinned.end(), shown) != pinned.end()) return;
  const std::string now = shown.type + " " + key_fingerprint(shown.blob);
  if (pinned.empty())
    throw Error(ErrorKind::kAuth,
                "the host " + host_label(host) + " is not trusted yet: it shows " + now +
                    "; compare this with the fingerprint that the site publishes, then run '" +
                    trust_command(settings) + "'");
  std::string old;
  for (const PublicKey& key : pinned)
    old += (old.empty() ? "" : ", ") + key.type + " " + key_fingerprint(key.blob);
  throw Error(ErrorKind::kAuth,
              std::string(kHostKeyChanged) + ": " + host_label(host) + " was trusted with " + old +
                  " and now shows " + now +
                  "; this may be a man-in-the-middle attack. No credential was sent. If the site "
                  "announces the new key, run '" +
                  trust_command(settings) + "'");
}

}  // namespace xffl::remote
