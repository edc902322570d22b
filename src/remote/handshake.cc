#include "handshake.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "known_hosts.h"
#include "wire.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/remote/stop_scope.h"

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

// AES-GCM comes first: with AES instructions AES-GCM costs a third of ChaCha20-Poly1305, which
// OpenSSH computes in plain C.
constexpr const char* kCiphers =
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,"
    "aes192-ctr,aes256-ctr";

// The signature algorithms of a key type.
std::string algorithms_of(const std::string& key_type) {
  return key_type == "ssh-rsa" ? "rsa-sha2-512,rsa-sha2-256" : key_type;
}

bool is_host_key_mismatch(const std::string& problem) {
  return problem.find("host key algo") != std::string::npos;
}

constexpr int kMaxQuestions = 20;  // per log-in

// After an answer the host may wait for its user, who approves the log-in on a phone. sshd ends a
// log-in after 120 s.
constexpr std::chrono::seconds kUserPatience{110};

// Without this callback libssh and OpenSSL ask for a passphrase on the terminal.
int no_passphrase(const char*, char*, size_t, int, int, void*) { return -1; }

// Ends a connection after a time or at a stop request. libssh waits for an agent without a limit,
// and an agent may wait for its user: ssh-add -c, a hardware key, a forwarded agent of a closed
// laptop.
class LimitedConnection {
 public:
  LimitedConnection(int connection, std::chrono::milliseconds time)
      : connection_(::fcntl(connection, F_DUPFD_CLOEXEC, 0)),
        on_stop_(StopScope::current(), [this] { end(); }),
        timer_([this, time](const std::stop_token& done) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any never;
          if (!never.wait_for(lock, done, time, [&] { return done.stop_requested(); })) end();
        }) {
    if (!connection_) throw system_error("watch the connection to the SSH agent", errno);
  }
  bool has_ended() const { return has_ended_; }

 private:
  void end() {
    has_ended_ = true;
    ::shutdown(connection_.get(), SHUT_RDWR);
  }

  const UniqueFd connection_;
  std::atomic<bool> has_ended_ = false;
  const std::stop_callback<std::function<void()>> on_stop_;
  const std::jthread timer_;
};

// One log-in, with the results of its authentication methods.
class LogIn {
 public:
  LogIn(ssh_session session, const SshSettings& settings, const SshHost& host)
      : session_(session), settings_(settings), host_(host) {}

  // Each method returns true when the server has authenticated the user.
  bool none() {
    return accepted(call([&] { return ssh_userauth_none(session_, nullptr); }), "");
  }

  bool key_file(const KeyFile& file) {
    ssh_key raw = nullptr;
    if (ssh_pki_import_privkey_file(file.key.c_str(), nullptr, no_passphrase, nullptr, &raw) !=
        SSH_OK) {
      note(file.key.string() + " cannot be read (if it has a passphrase, add it to the agent)");
      return false;
    }
    const KeyPtr key(raw);
    if (file.certificate_file && !add_certificate(key.get(), *file.certificate_file)) return false;
    return accepted(call([&] { return ssh_userauth_publickey(session_, nullptr, key.get()); }),
                    file.certificate_file.value_or(file.key).string());
  }

  bool agent(const std::filesystem::path& socket) {
    UniqueFd connection = connect_to_agent(socket);
    if (!connection) {
      note("the agent: it does not answer");
      return false;
    }
    const LimitedConnection limited(connection.get(), settings_.timeouts.log_in);
    ssh_set_agent_socket(session_, connection.release());
    const int result = call([&] { return ssh_userauth_agent(session_, nullptr); });
    StopScope::check("waiting for the SSH agent");
    return accepted(result,
                    limited.has_ended() ? "the agent, which has not answered" : "the agent");
  }

  bool keyboard(const Ask& ask) {
    const auto next = [&] {
      return call([&] { return ssh_userauth_kbdint(session_, nullptr, nullptr); }, kUserPatience);
    };
    int result = next();
    for (int questions = 0; result == SSH_AUTH_INFO; ++questions) {
      if (questions == kMaxQuestions)
        throw Error(ErrorKind::kAuth, host_label(host_) + " asked " +
                                          std::to_string(kMaxQuestions) +
                                          " times without accepting the log-in");
      answer(ask);
      result = next();
    }
    return accepted(result, "keyboard-interactive");
  }

  bool password(const Ask& ask) {
    struct Reply {
      std::string text;
      ~Reply() { explicit_bzero(text.data(), text.size()); }
    };
    const Reply reply{ask(settings_.user + "@" + host_label(host_) + "'s password: ", false)};
    const auto send = [&] { return ssh_userauth_password(session_, nullptr, reply.text.c_str()); };
    return accepted(call(send, kUserPatience), "password authentication");
  }

  bool offers(int method) { return ssh_userauth_list(session_, nullptr) & method; }

  void note(const std::string& result) { tried_ += (tried_.empty() ? "" : "; ") + result; }
  const std::string& tried() const { return tried_; }
  /// False: a key was accepted as the first factor (another key is no second one), or the server
  /// ended the connection after too many keys.
  bool wants_keys() const { return !partial_ && !ended_; }

 private:
  bool add_certificate(ssh_key key, const std::filesystem::path& path) {
    ssh_key raw = nullptr;
    const bool read = ssh_pki_import_cert_file(path.c_str(), &raw) == SSH_OK;
    const KeyPtr certificate(raw);
    if (read && ssh_pki_copy_cert_to_privkey(certificate.get(), key) == SSH_OK) return true;
    note("the certificate " + path.string() + " does not belong to its key");
    return false;
  }

  void answer(const Ask& ask) {
    const auto text = [](const char* from) {
      return from == nullptr ? std::string() : log::printable(from, 1000);
    };
    const std::string intro = text(ssh_userauth_kbdint_getinstruction(session_));
    const int count = ssh_userauth_kbdint_getnprompts(session_);
    for (int i = 0; i < count; ++i) {
      char echo = 0;
      const unsigned index = static_cast<unsigned>(i);
      std::string prompt = text(ssh_userauth_kbdint_getprompt(session_, index, &echo));
      if (i == 0 && !intro.empty()) prompt = intro + "\n" + prompt;
      if (!settings_.jump.empty())
        prompt = host_label(host_) + ": " + prompt;  // tells the host from the jump hosts
      std::string reply = ask(prompt, echo != 0);
      ssh_userauth_kbdint_setanswer(session_, index, reply.c_str());
      explicit_bzero(reply.data(), reply.size());
    }
  }

  // `patience` is for a step that waits for the user.
  template <class Step>
  int call(Step step, std::chrono::milliseconds patience = {}) {
    return drive(session_, std::max(settings_.timeouts.log_in, patience), SSH_AUTH_AGAIN,
                 "logging in to " + host_label(host_), [&] {
                   const int result = step();
                   // After a disconnection libssh 0.10 returns SSH_AUTH_AGAIN for ever.
                   const bool lost = result == SSH_AUTH_AGAIN && !ssh_is_connected(session_);
                   return lost ? SSH_AUTH_ERROR : result;
                 });
  }

  bool accepted(int result, const std::string& method) {
    if (result == SSH_AUTH_SUCCESS) return true;
    // sshd disconnects after too many failures; this disconnection is a refusal, not a lost link.
    const std::string problem = libssh_error(session_);
    const bool too_many = problem.find("Too many authentication failures") != std::string::npos;
    if (result == SSH_AUTH_ERROR && !ssh_is_connected(session_) && !too_many)
      throw Error(ErrorKind::kRemote,
                  "the link was lost while logging in to " + host_label(host_) + ": " + problem);
    partial_ = partial_ || result == SSH_AUTH_PARTIAL;
    if (!method.empty())
      note(method + (result == SSH_AUTH_PARTIAL ? ": accepted as the first factor" : ": refused"));
    if (too_many && !ended_) note("then the host ended the log-in (too many refused keys)");
    ended_ = ended_ || too_many;
    return false;
  }

  ssh_session session_;
  const SshSettings& settings_;
  const SshHost& host_;
  std::string tried_;
  bool partial_ = false, ended_ = false;
};

bool try_agent(LogIn& log_in, const Credentials& credentials) {
  return !credentials.agent.empty() && log_in.agent(credentials.agent);
}

bool try_files(LogIn& log_in, const Credentials& credentials) {
  const auto now = SystemClock().utc();
  for (const KeyFile& file : credentials.files) {
    if (const std::string problem = file.unusable(now); !problem.empty()) {
      log_in.note(problem);
      continue;
    }
    if (log_in.key_file(file)) return true;
    if (!log_in.wants_keys()) return false;
  }
  return false;
}

}  // namespace

std::string libssh_error(ssh_session session) {
  return log::printable(ssh_get_error(session), 300);
}

std::string facility_command(const std::string& command, const SshSettings& settings) {
  return "xffl " + command + " " + (settings.facility.empty() ? "<facility>" : settings.facility);
}

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
    StopScope::check(activity);
    ::poll(&wait, 1, static_cast<int>(std::min<long>(left, 200)));
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
                                        facility_command("trust", settings) + "'");
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
  std::string old;
  for (const PublicKey& key : pinned)
    old += (old.empty() ? "" : ", ") + key.type + " " + key_fingerprint(key.blob);
  throw Error(ErrorKind::kAuth,
              std::string(kHostKeyChanged) + ": " + host_label(host) + " was trusted with " + old +
                  " and now shows " + now +
                  "; this may be a man-in-the-middle attack. No credential was sent. If the site "
                  "announces the new key, run '" +
                  facility_command("trust", settings) + "'");
}

void authenticate(ssh_session session, const SshSettings& settings, const SshHost& host,
                  const Credentials& credentials, const Ask* ask) {
  LogIn log_in(session, settings, host);
  if (log_in.none()) return;
  const bool keys = log_in.offers(SSH_AUTH_METHOD_PUBLICKEY);
  if (keys && credentials.agent_first && try_agent(log_in, credentials)) return;
  if (keys && log_in.wants_keys() && try_files(log_in, credentials)) return;
  if (keys && log_in.wants_keys() && !credentials.agent_first && try_agent(log_in, credentials))
    return;
  const bool interactive = ssh_is_connected(session) && log_in.offers(SSH_AUTH_METHOD_INTERACTIVE);
  if (interactive && ask != nullptr && log_in.keyboard(*ask)) return;
  const bool password = ssh_is_connected(session) && log_in.offers(SSH_AUTH_METHOD_PASSWORD);
  if (password && ask != nullptr && log_in.password(*ask)) return;
  std::string message =
      "the log-in as " + settings.user + " to " + host_label(host) +
      " was refused: " + (log_in.tried().empty() ? credentials.describe() : log_in.tried());
  if (!credentials.files.empty() || !credentials.identities.empty())
    message += " (offered: " + credentials.describe() + ")";
  const bool wants_user = ask == nullptr && (interactive || password);
  if (wants_user) {
    message += interactive ? "; the host also needs keyboard-interactive authentication"
                           : "; the host also offers password authentication";
    message += ": run '" + facility_command("login", settings) + "' on a terminal";
  }
  // Many hosts offer passwords, so the refused key may be the cause nevertheless.
  if (!wants_user || (!interactive && log_in.wants_keys()))
    message += "; " + renewal(settings) +
               "; the log-in is retried when the credential has changed" + agent_advice(settings);
  throw Error(ErrorKind::kAuth, message);
}

}  // namespace xffl::remote
