#include <string.h>

#include <algorithm>

#include "handshake.h"
#include "known_hosts.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

constexpr int kMaxQuestions = 20;  // per log-in

struct KeyDeleter {
  void operator()(ssh_key key) const { ssh_key_free(key); }
};
using KeyPtr = std::unique_ptr<ssh_key_struct, KeyDeleter>;

// Without this callback libssh and OpenSSL ask for a passphrase on the terminal.
int no_passphrase(const char*, char*, size_t, int, int, void*) { return -1; }

// One log-in: the methods that were tried and their results.
class LogIn {
 public:
  LogIn(ssh_session session, const SshSettings& settings, const SshHost& host)
      : session_(session), settings_(settings), host_(host) {}

  // These return true when the server has authenticated the user.
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
    ssh_options_set(session_, SSH_OPTIONS_IDENTITY_AGENT, socket.c_str());
    return accepted(call([&] { return ssh_userauth_agent(session_, nullptr); }), "the agent");
  }

  bool keyboard(const Ask& ask) {
    int result = call([&] { return ssh_userauth_kbdint(session_, nullptr, nullptr); });
    for (int questions = 0; result == SSH_AUTH_INFO; ++questions) {
      if (questions == kMaxQuestions)
        throw Error(ErrorKind::kAuth, host_label(host_) + " asked " +
                                          std::to_string(kMaxQuestions) +
                                          " times without accepting the log-in");
      answer(ask);
      result = call([&] { return ssh_userauth_kbdint(session_, nullptr, nullptr); });
    }
    return accepted(result, "keyboard-interactive");
  }

  bool offers(int method) { return ssh_userauth_list(session_, nullptr) & method; }

  void note(const std::string& result) { tried_ += (tried_.empty() ? "" : "; ") + result; }
  const std::string& tried() const { return tried_; }
  bool partial() const { return partial_; }

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
        prompt = host_label(host_) + ": " + prompt;  // names the host among the jump hosts
      std::string reply = ask(prompt, echo != 0);
      ssh_userauth_kbdint_setanswer(session_, index, reply.c_str());
      explicit_bzero(reply.data(), reply.size());
    }
  }

  template <class Step>
  int call(Step step) {
    return drive(session_, settings_.timeouts.log_in, SSH_AUTH_AGAIN,
                 "logging in to " + host_label(host_), step);
  }

  bool accepted(int result, const std::string& method) {
    if (result == SSH_AUTH_SUCCESS) return true;
    // sshd disconnects after too many failures; this is a refusal, not a lost link.
    const std::string problem = ssh_get_error(session_);
    const bool too_many = problem.find("Too many authentication failures") != std::string::npos;
    if (result == SSH_AUTH_ERROR && !ssh_is_connected(session_) && !too_many)
      throw Error(ErrorKind::kRemote, "the link was lost while logging in to " + host_label(host_) +
                                          ": " + log::printable(problem, 300));
    partial_ = partial_ || result == SSH_AUTH_PARTIAL;
    if (!method.empty())
      note(method + (result == SSH_AUTH_PARTIAL ? ": accepted as the first factor" : ": refused"));
    return false;
  }

  ssh_session session_;
  const SshSettings& settings_;
  const SshHost& host_;
  std::string tried_;
  bool partial_ = false;
};

bool try_agent(LogIn& log_in, const Credentials& credentials) {
  return !credentials.agent.empty() && log_in.agent(credentials.agent);
}

bool try_files(LogIn& log_in, const Credentials& credentials) {
  const auto now = SystemClock().utc();
  for (const KeyFile& file : credentials.files) {
    if (!file.problem.empty()) {
      log_in.note(file.problem);
      continue;
    }
    if (is_expired(file.certificate, now)) {
      log_in.note("the certificate " + file.certificate_file->string() + " expired at " +
                  format_utc(*file.certificate->valid_before));
      continue;
    }
    if (log_in.key_file(file)) return true;
    if (log_in.partial()) return false;  // another key is no second factor
  }
  return false;
}

}  // namespace

void authenticate(ssh_session session, const SshSettings& settings, const SshHost& host,
                  const Credentials& credentials, const Ask* ask) {
  LogIn log_in(session, settings, host);
  if (log_in.none()) return;
  const bool keys = log_in.offers(SSH_AUTH_METHOD_PUBLICKEY);
  if (keys && credentials.agent_first && try_agent(log_in, credentials)) return;
  if (keys && !log_in.partial() && try_files(log_in, credentials)) return;
  if (keys && !log_in.partial() && !credentials.agent_first && try_agent(log_in, credentials))
    return;
  const bool interactive = ssh_is_connected(session) && log_in.offers(SSH_AUTH_METHOD_INTERACTIVE);
  if (interactive && ask != nullptr && log_in.keyboard(*ask)) return;
  const std::string facility = settings.facility.empty() ? "<facility>" : settings.facility;
  std::string message =
      "the log-in as " + settings.user + " to " + host_label(host) +
      " was refused: " + (log_in.tried().empty() ? credentials.describe() : log_in.tried());
  if (!credentials.files.empty() || !credentials.identities.empty())
    message += " (offered: " + credentials.describe() + ")";
  message +=
      interactive && ask == nullptr
          ? "; the host also needs keyboard-interactive authentication: run 'xffl login " +
                facility + "' on a terminal"
          : "; " + renewal(settings) + "; the log-in is retried when the credential has changed";
  throw Error(ErrorKind::kAuth, message);
}

}  // namespace xffl::remote
