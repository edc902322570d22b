// The one connection to a facility, and the limits of new connections.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "connection.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"

namespace xffl::remote {

/// Limits the rate of new connections to a host. Thread-safe.
///
/// Sites ban addresses that connect too often (MaxStartups, fail2ban, PerSourcePenalties). A host
/// gets at most 6 new connections in a minute and 60 in an hour. After a failure the next
/// connection to the host waits; the wait doubles from 1 s to 1 min (with jitter) until a
/// connection succeeds. The sessions of a program share the limits, so that facilities behind one
/// host count together.
class ConnectionLimits {
 public:
  /// A connector waits up to `longest_wait` for the limits before it gives up.
  explicit ConnectionLimits(const Clock& clock,
                            std::chrono::seconds longest_wait = std::chrono::seconds(3))
      : longest_wait_(longest_wait), clock_(clock) {}

  std::chrono::seconds longest_wait() const { return longest_wait_; }

  /// The time until the limits allow a new connection to `host`; zero: now.
  std::chrono::nanoseconds wait(const std::string& host) const;
  /// Whether an optional connection to `host` may begin now: it leaves at least half of both limits
  /// to the necessary connections.
  bool has_spare(const std::string& host) const;
  /// Call start() before each attempt. Returns wait(). If this wait is at most `max_wait`, start()
  /// counts an attempt at the end of the wait.
  std::chrono::nanoseconds start(const std::string& host, std::chrono::nanoseconds max_wait);
  void succeeded(const std::string& host);
  void failed(const std::string& host);

  /// The clock of all pauses between connections.
  const Clock& clock() const { return clock_; }

 private:
  struct Host {
    std::deque<Clock::MonotonicTime> attempts;  // times of the last 60 attempts
    int failures = 0;
    Clock::MonotonicTime not_before{};
  };

  std::chrono::nanoseconds wait_locked(const std::string& host) const;

  const std::chrono::seconds longest_wait_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<std::string, Host> hosts_;
  std::minstd_rand jitter_{std::random_device{}()};
};

/// Why a session leaves a login node.
enum class NodeTrouble { kCannotWrite, kRunsNoCommand };

/// Opens and keeps the one connection to a facility. Thread-safe. A host gets two refused log-ins
/// with one credential, the second 5 min after the first, and as many beside a live connection: a
/// host whose home folders or user directory are away refuses every key for a moment. Remembers a
/// wrong host key for 15 min, until the pinned keys change: the host, or another host of its name,
/// may show the right key later. Meanwhile the connector throws the remembered error without a
/// connection to the host.
class Connector {
 public:
  /// Connectors may share `limits`; null: own limits. `ask`, which may be empty, answers the
  /// prompts of keyboard-interactive log-ins and gives passwords.
  explicit Connector(const SshSettings& settings,
                     std::shared_ptr<ConnectionLimits> limits = nullptr, Ask ask = {})
      : settings_(settings),
        ask_(std::move(ask)),
        limits_(limits ? std::move(limits) : make_connection_limits()) {}

  const SshSettings& settings() const { return settings_; }

  /// Returns the live connection, or a new connection to the first host that shows a trusted key
  /// and accepts the log-in; a host whose key is unknown or has changed is logged once. Waits for
  /// the limits, at most their longest_wait(). With `ask` a user is present, and the connector
  /// forgets refused log-ins and wrong keys. Throws kRemote, kAuth (no host accepts, and one host
  /// or a jump host refuses the log-in; no host has a trusted key; the user gives no answer),
  /// kCancelled on the thread's StopScope.
  std::shared_ptr<Connection> get(const Ask* ask = nullptr);

  /// Returns get() and up to `count` - 1 further connections to the same host for bulk transfers,
  /// fewer when less than half of a limit would be left or the host refuses. get() closes the
  /// further connections when the last call is more than a minute ago.
  std::vector<std::shared_ptr<Connection>> get_several(int count);

  /// Replaces `failed`, a connection to a node in `trouble`, by a connection to another login node,
  /// and logs `problem`; for half an hour new connections prefer other nodes. Returns false and
  /// keeps `failed` when no other node can be reached without a prompt, or when every other node
  /// was left or not reached in the last half hour. Returns true without a new connection when
  /// another thread has replaced `failed`. With one host, whose name may stand for several nodes,
  /// leave() returns false and replaces `failed` by a new connection to that name, once in half an
  /// hour and without a prompt. Throws kCancelled.
  bool leave(const std::shared_ptr<Connection>& failed, const std::string& problem,
             NodeTrouble trouble = NodeTrouble::kCannotWrite);

  /// The time of the clock of the limits.
  Clock::MonotonicTime now() const { return limits_->clock().monotonic(); }

  /// The connector calls on_new with each new connection, before the first use.
  std::function<void(Connection&)> on_new;

  /// Exchanges keys with `host` through the jump hosts, without a log-in to `host`.
  struct Greeting {
    SessionPtr session;
    std::shared_ptr<void> below;
  };
  Greeting greet(const SshHost& host, const std::vector<PublicKey>& wanted);

 private:
  struct Refusal {
    std::string stamp;  // the stamp of the refused credentials
    int count = 0;
    std::string message;
    Clock::MonotonicTime next{};  // the earliest second log-in
    std::string next_utc;
  };
  // A host, and whether the log-in is an extra one. Extra log-ins are without prompts, so a host
  // with a second factor refuses them.
  using LogInKind = std::pair<std::string, bool>;
  struct Down {
    Clock::MonotonicTime since{};
    std::string problem;
  };
  struct WrongKey {
    std::vector<PublicKey> pinned;
    std::string message;
    Clock::MonotonicTime since{};
  };

  std::shared_ptr<Connection> connect(const Ask* ask);
  std::shared_ptr<Connection> connect_to_one_of(const std::vector<SshHost>& hosts, const Ask* ask);
  void use(std::shared_ptr<Connection> connection);
  bool was_left(const SshHost& host) const;
  void connect_further(size_t count);
  void note_no_further(const Error& error);
  std::shared_ptr<Connection> connect_to(const SshHost& host, const Credentials& credentials,
                                         const Ask* ask);
  std::shared_ptr<Connection> log_in(const SshHost& host, UniqueFd socket,
                                     std::shared_ptr<void> below, const Credentials& credentials,
                                     const Ask* ask);
  /// Returns a socket to `host` through the jump hosts, whose log-ins may use `ask`.
  UniqueFd reach(const SshHost& host, const Credentials& credentials, std::shared_ptr<void>& below,
                 const Ask* ask);
  std::vector<PublicKey> pinned(const SshHost& host, const Ask* ask);
  Credentials check_credentials(const Ask* ask);
  void check_refusals(const SshHost& host, const Credentials& credentials, const Ask* ask) const;
  void note_refusal(const SshHost& host, const Credentials& credentials,
                    const std::string& message);
  bool has_user(const Ask* ask) const { return ask != nullptr && ask != &ask_; }
  void wait_for_limits(const SshHost& host);
  void note_failure(const SshHost& host, const Error& error);
  std::unique_lock<std::timed_mutex> lock();
  void warn_of_key(const SshHost& host, const std::string& problem);

  const SshSettings settings_;
  const Ask ask_;
  SystemClock clock_;
  std::timed_mutex mutex_;  // held during a connection attempt
  const std::shared_ptr<ConnectionLimits> limits_;
  std::shared_ptr<Connection> connection_;
  SshHost host_;                                      // the host of connection_
  std::map<std::string, Clock::MonotonicTime> left_;  // hosts that leave() avoids, and since when
  std::vector<std::shared_ptr<Connection>> further_;
  Clock::MonotonicTime further_used_{};
  std::optional<Clock::MonotonicTime> further_failed_;
  std::map<LogInKind, Refusal> refusals_;
  bool is_extra_ = false;  // the log-in in progress, beside a live connection
  std::map<std::string, WrongKey> wrong_keys_;
  std::map<std::string, std::string> warned_;  // the logged problem of a host's key
  std::map<std::string, Down> down_;           // hosts that failed since the last log-in
};

}  // namespace xffl::remote
