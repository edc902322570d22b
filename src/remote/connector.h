// Makes and keeps the one connection to a facility.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "connection.h"
#include "connection_limits.h"

namespace xffl::remote {

/// Thread-safe. Remembers what must not be asked again: a refused log-in until the credential
/// changes, a wrong host key until the pinned keys change; neither costs a connection.
class Connector {
 public:
  /// `limits` may be shared with other connectors; none: its own. `ask`, which may be empty, is
  /// asked whenever a log-in needs a person.
  explicit Connector(const SshSettings& settings,
                     std::shared_ptr<ConnectionLimits> limits = nullptr, Ask ask = {})
      : settings_(settings),
        ask_(std::move(ask)),
        limits_(limits ? std::move(limits) : make_connection_limits()) {}

  const SshSettings& settings() const { return settings_; }

  /// The live connection, or a new one to the first host that answers. Waits a few seconds for the
  /// limits, not longer. `ask` is a person who is there now: what was refused before is tried
  /// again. Throws kRemote, kAuth.
  std::shared_ptr<Connection> get(const Ask* ask = nullptr);

  /// get() and up to `count` - 1 further connections to the same host, for bulk; those that cannot
  /// be had at once are done without. They are closed a minute after the last call.
  std::vector<std::shared_ptr<Connection>> get_several(int count);

  /// Called with each new connection of get(), before anybody uses it.
  std::function<void(Connection&)> on_new;

  /// A key exchange with `host` through the jump hosts, without logging in to it.
  struct Greeting {
    SessionPtr session;
    std::shared_ptr<void> below;
  };
  Greeting greet(const SshHost& host, const std::vector<PublicKey>& wanted);

 private:
  struct Refusal {
    std::string stamp;  // of the credentials that were refused
    int count = 0;
    std::string message;
  };

  std::shared_ptr<Connection> connect(const Ask* ask);
  void connect_further(size_t count);
  std::shared_ptr<Connection> connect_to(const SshHost& host, const Credentials& credentials,
                                         const Ask* ask);
  std::shared_ptr<Connection> log_in(const SshHost& host, UniqueFd socket,
                                     std::shared_ptr<void> below, const Credentials& credentials,
                                     const Ask* ask);
  /// Through the jump hosts, which may ask a person, too, to a socket that ends at `host`.
  UniqueFd reach(const SshHost& host, const Credentials& credentials, std::shared_ptr<void>& below,
                 const Ask* ask);
  std::vector<PublicKey> pinned(const SshHost& host);
  Credentials check_credentials(const Ask* ask);
  void wait_for_limits(const SshHost& host);

  const SshSettings settings_;
  const Ask ask_;
  SystemClock clock_;
  std::mutex mutex_;
  const std::shared_ptr<ConnectionLimits> limits_;
  std::shared_ptr<Connection> connection_;
  SshHost host_;  // of connection_
  std::vector<std::shared_ptr<Connection>> further_;
  Clock::MonotonicTime further_used_{};
  std::optional<Clock::MonotonicTime> further_failed_;
  Refusal refusal_;
  std::map<std::string, std::pair<std::vector<PublicKey>, std::string>> wrong_keys_;
};

}  // namespace xffl::remote
