#include "connector.h"

#include <algorithm>
#include <utility>

#include "host_socket.h"
#include "known_hosts.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {
namespace {

using namespace std::chrono_literals;

constexpr size_t kPerMinute = 6;
constexpr size_t kPerHour = 60;
constexpr auto kFirstPause = 1000ms;
constexpr auto kLongestPause = 60'000ms;

constexpr int kMaxRefusedLogIns = 2;
constexpr auto kRefusedPause = 5min;
constexpr auto kWrongKeyPause = 15min;
constexpr auto kFurtherIdle = 60s, kFurtherPause = 300s;
constexpr auto kSilentWait = 3s;  // a longer wait for the limits is logged
constexpr auto kLeftFor = 30min;

// The kAuth error of a host without a trusted key, in contrast to a refused log-in.
struct KeyProblem {
  Error error;
};

// A host has refused the log-in. Another host may accept it.
struct RefusedLogIn : Error {
  explicit RefusedLogIn(const std::string& message, bool is_unanswered = false)
      : Error(ErrorKind::kAuth, message), user_is_away(is_unanswered) {}
  bool user_is_away;
};

// Marks the log-ins of its lifetime as extra ones.
struct ExtraLogIns {
  explicit ExtraLogIns(bool& mark) : is_extra(mark) { is_extra = true; }
  ~ExtraLogIns() { is_extra = false; }
  ExtraLogIns(const ExtraLogIns&) = delete;
  bool& is_extra;
};

void append(std::string& list, const std::string& item) {
  list += (list.empty() ? "" : "; ") + item;
}

}  // namespace

std::chrono::nanoseconds ConnectionLimits::wait(const std::string& host) const {
  const std::lock_guard lock(mutex_);
  return wait_locked(host);
}

bool ConnectionLimits::has_spare(const std::string& host) const {
  const std::lock_guard lock(mutex_);
  if (wait_locked(host) > 0ns) return false;
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return true;
  const auto now = clock_.monotonic();
  const auto num_within = [&](std::chrono::nanoseconds window) {
    const auto& attempts = found->second.attempts;
    return static_cast<size_t>(std::count_if(attempts.begin(), attempts.end(),
                                             [&](const auto& at) { return at + window > now; }));
  };
  return num_within(1min) < kPerMinute / 2 && num_within(1h) < kPerHour / 2;
}

std::chrono::nanoseconds ConnectionLimits::wait_locked(const std::string& host) const {
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return 0ns;
  const auto& attempts = found->second.attempts;
  Clock::MonotonicTime free = found->second.not_before;
  if (attempts.size() >= kPerMinute)
    free = std::max(free, attempts[attempts.size() - kPerMinute] + 1min);
  if (attempts.size() >= kPerHour) free = std::max(free, attempts[attempts.size() - kPerHour] + 1h);
  return std::max<std::chrono::nanoseconds>(0ns, free - clock_.monotonic());
}

std::chrono::nanoseconds ConnectionLimits::start(const std::string& host,
                                                 std::chrono::nanoseconds max_wait) {
  const std::lock_guard lock(mutex_);
  const auto wait = wait_locked(host);
  if (wait > max_wait) return wait;
  auto& attempts = hosts_[host].attempts;
  attempts.push_back(clock_.monotonic() + wait);
  if (attempts.size() > kPerHour) attempts.pop_front();
  return wait;
}

void ConnectionLimits::succeeded(const std::string& host) {
  const std::lock_guard lock(mutex_);
  hosts_[host].failures = 0;
}

void ConnectionLimits::failed(const std::string& host) {
  const std::lock_guard lock(mutex_);
  Host& state = hosts_[host];
  const auto pause = std::min<std::chrono::milliseconds>(
      kLongestPause, kFirstPause * (1 << std::min(state.failures, 6)));
  ++state.failures;
  std::uniform_real_distribution<double> share(0.75, 1.25);
  state.not_before = clock_.monotonic() +
                     std::chrono::duration_cast<std::chrono::nanoseconds>(pause * share(jitter_));
}

std::shared_ptr<ConnectionLimits> make_connection_limits(std::chrono::seconds longest_wait) {
  struct WithClock {
    explicit WithClock(std::chrono::seconds longest_wait) : limits(clock, longest_wait) {}
    SystemClock clock;
    ConnectionLimits limits;
  };
  const auto both = std::make_shared<WithClock>(longest_wait);
  return {both, &both->limits};
}

// Another thread may hold the mutex for a minute, while it connects.
std::unique_lock<std::timed_mutex> Connector::lock() {
  std::unique_lock lock(mutex_, std::defer_lock);
  while (!lock.try_lock_for(200ms)) StopScope::check("waiting for a connection");
  return lock;
}

std::shared_ptr<Connection> Connector::get(const Ask* ask) {
  const auto held = lock();
  if (now() - further_used_ > kFurtherIdle) further_.clear();
  if (!connection_ || !connection_->alive()) {
    connection_.reset();
    use(connect(ask != nullptr || !ask_ ? ask : &ask_));
  }
  return connection_;
}

void Connector::use(std::shared_ptr<Connection> connection) {
  further_.clear();
  connection_ = std::move(connection);
  if (on_new) on_new(*connection_);
}

bool Connector::was_left(const SshHost& host) const {
  const auto found = left_.find(host_label(host));
  return found != left_.end() && now() - found->second < kLeftFor;
}

bool Connector::leave(const std::shared_ptr<Connection>& failed, const std::string& problem,
                      NodeTrouble trouble) {
  const bool has_others = settings_.hosts.size() > 1;
  const auto held = lock();
  if (connection_ != failed) return has_others;
  const SshHost bad = host_;
  if (!has_others && was_left(bad)) return false;
  std::vector<SshHost> others = settings_.hosts;
  std::erase_if(others,
                [&](const SshHost& host) { return has_others && (host == bad || was_left(host)); });
  left_[host_label(bad)] = now();
  if (others.empty()) return false;
  const ExtraLogIns extra(is_extra_);
  try {  // without a prompt: the old connection still serves
    use(connect_to_one_of(others, nullptr));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    for (const SshHost& host : others) left_[host_label(host)] = now();  // one try in half an hour
    log::debug("no other log-in node", {{"facility", settings_.facility}, {"why", error.what()}});
    return false;
  }
  const char* event = trouble == NodeTrouble::kCannotWrite
                          ? "a log-in node is not used for 30 minutes: it cannot write"
                          : "a log-in node is not used for 30 minutes: it runs no command";
  if (!has_others) event = "a new connection to the log-in node replaces one in trouble";
  log::warning(event, {{"facility", settings_.facility},
                       {"host", host_label(bad)},
                       {"instead", host_label(host_)},
                       {"problem", problem}});
  return has_others;
}

std::vector<std::shared_ptr<Connection>> Connector::get_several(int count) {
  std::vector<std::shared_ptr<Connection>> all = {get()};
  const auto held = lock();
  further_used_ = now();
  std::erase_if(further_, [](const auto& connection) { return !connection->alive(); });
  connect_further(static_cast<size_t>(count - 1));
  all.insert(all.end(), further_.begin(), further_.end());
  all.resize(std::min(all.size(), static_cast<size_t>(count)));
  return all;
}

// Opens up to `count` further connections as far as the limits of the host and of the jump hosts
// have room to spare: a lost connection, or the first one of another facility, needs it more. After
// a failure the connector opens none for kFurtherPause.
void Connector::connect_further(size_t count) {
  const ExtraLogIns extra(is_extra_);
  try {
    const bool failed_lately = further_failed_ && now() - *further_failed_ < kFurtherPause;
    const auto has_spare = [&](const SshHost& at) { return limits_->has_spare(host_label(at)); };
    while (further_.size() < count && !failed_lately && has_spare(host_) &&
           std::all_of(settings_.jump.begin(), settings_.jump.end(), has_spare))
      further_.push_back(connect_to(host_, check_credentials(nullptr), nullptr));
  } catch (const KeyProblem& problem) {
    note_no_further(problem.error);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    note_no_further(error);
  }
}

void Connector::note_no_further(const Error& error) {
  log::debug("no further connection", {{"host", host_label(host_)}, {"why", error.what()}});
  further_failed_ = now();
}

// Finds and checks the credentials before any network access.
Credentials Connector::check_credentials(const Ask* ask) {
  Credentials credentials = find_credentials(settings_);
  if (has_user(ask) || credentials.usable(clock_.utc())) return credentials;
  const std::string unusable = credentials.unusable(clock_.utc());
  if (ask != nullptr && unusable.empty()) return credentials;  // the user can answer the prompts
  const std::string problem = unusable.empty()
                                  ? "there is no key: set ssh.keys, or run '" +
                                        facility_command("login", settings_) +
                                        "' on a terminal if the host asks for a password"
                                  : unusable + "; " + renewal(settings_);
  throw Error(ErrorKind::kAuth, "cannot log in to " + host_label(settings_.hosts.at(0)) + " as " +
                                    settings_.user + ": " + problem +
                                    "; the log-in is then retried automatically" +
                                    agent_advice(settings_));
}

// Throws RefusedLogIn, before any network access, while another log-in at `host` is too early or
// hopeless. The message stays the same until then: callers log each new one.
void Connector::check_refusals(const SshHost& host, const Credentials& credentials,
                               const Ask* ask) const {
  if (has_user(ask)) return;
  const auto found = refusals_.find({host_label(host), is_extra_});
  if (found == refusals_.end() || found->second.stamp != credentials.stamp) return;
  const Refusal& refusal = found->second;
  if (refusal.count >= kMaxRefusedLogIns)
    throw RefusedLogIn(refusal.message +
                       " (refused twice; not retried until the credential changes)");
  if (now() < refusal.next)
    throw RefusedLogIn(refusal.message + " (refused once; the next try is due at " +
                       refusal.next_utc + ")");
}

void Connector::note_refusal(const SshHost& host, const Credentials& credentials,
                             const std::string& message) {
  Refusal& refusal = refusals_[{host_label(host), is_extra_}];
  refusal.count = refusal.stamp == credentials.stamp ? refusal.count + 1 : 1;
  refusal.stamp = credentials.stamp;
  refusal.message = message;
  refusal.next = now() + kRefusedPause;
  refusal.next_utc = format_utc(limits_->clock().utc() + kRefusedPause);
}

std::shared_ptr<Connection> Connector::connect(const Ask* ask) {
  if (settings_.hosts.empty()) throw Error(ErrorKind::kConfig, "a facility needs a host");
  std::vector<SshHost> hosts = settings_.hosts;
  std::stable_partition(hosts.begin(), hosts.end(),
                        [this](const SshHost& host) { return !was_left(host); });
  return connect_to_one_of(hosts, ask);
}

// Returns a connection to the first of `hosts` that shows a trusted key and accepts the log-in, and
// sets host_. A refusal counts more than an outage of another host: only a user may end it.
std::shared_ptr<Connection> Connector::connect_to_one_of(const std::vector<SshHost>& hosts,
                                                         const Ask* ask) {
  const Credentials credentials = check_credentials(ask);
  std::string problems, auth_problems, unreachable;
  bool may_recover = false, is_refused = false;
  // A facility that waits for its user tries every few seconds: it would use up the limits of the
  // jump hosts, which other facilities share.
  const bool paces =
      !settings_.jump.empty() && !has_user(ask) &&
      std::any_of(hosts.begin(), hosts.end(), [&](const SshHost& host) {
        const auto refusal = refusals_.find({host_label(host), is_extra_});
        return refusal != refusals_.end() && refusal->second.stamp == credentials.stamp;
      });
  for (const SshHost& host : hosts) {
    const auto down = down_.find(host_label(host));
    if (paces && down != down_.end() && now() - down->second.since < kRefusedPause) {
      may_recover = true;
      append(problems, down->second.problem);
      append(unreachable, host_label(host) + " is not reachable");
      continue;
    }
    try {
      auto connection = connect_to(host, credentials, ask);
      host_ = host;
      down_.clear();
      return connection;
    } catch (const KeyProblem& problem) {
      // The other hosts may show their trusted keys. No credential was sent to this host.
      warn_of_key(host, problem.error.what());
      append(problems, problem.error.what());
      append(auth_problems, problem.error.what());
    } catch (const RefusedLogIn& refusal) {
      is_refused = true;
      // The other hosts may accept a key. They would only ask the absent user again.
      if (refusal.user_is_away) ask = nullptr;
      append(auth_problems, refusal.what());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRemote) throw;
      may_recover = true;
      append(problems, error.what());
      append(unreachable, host_label(host) + " is not reachable");
    }
  }
  if (!is_refused) throw Error(may_recover ? ErrorKind::kRemote : ErrorKind::kAuth, problems);
  // The text of an outage differs at each try; callers log each new message.
  if (may_recover) append(auth_problems, unreachable);
  throw Error(ErrorKind::kAuth, auth_problems);
}

void Connector::warn_of_key(const SshHost& host, const std::string& problem) {
  if (settings_.hosts.size() < 2) return;  // the caller reports the error
  std::string& warned = warned_[host_label(host)];
  if (std::exchange(warned, problem) != problem)
    log::warning(
        "a log-in node is not used: its host key is not trusted",
        {{"facility", settings_.facility}, {"host", host_label(host)}, {"problem", problem}});
}

std::vector<PublicKey> Connector::pinned(const SshHost& host, const Ask* ask) {
  std::vector<PublicKey> keys = pinned_keys(settings_.known_hosts, host);
  if (keys.empty())
    throw KeyProblem{{ErrorKind::kAuth, "the host " + host_label(host) +
                                            " is not trusted yet: run '" +
                                            facility_command("trust", settings_) +
                                            "', which shows the fingerprint of its key"}};
  const auto wrong = wrong_keys_.find(host_label(host));
  if (wrong != wrong_keys_.end() && wrong->second.pinned == keys && !has_user(ask) &&
      now() - wrong->second.since < kWrongKeyPause)
    throw KeyProblem{{ErrorKind::kAuth, wrong->second.message}};
  return keys;
}

void Connector::wait_for_limits(const SshHost& host) {
  const std::string label = host_label(host);
  const auto wait = limits_->start(label, limits_->longest_wait());
  const std::string seconds =
      std::to_string(std::chrono::ceil<std::chrono::seconds>(wait).count()) + " s";
  if (wait > limits_->longest_wait())
    throw Error(ErrorKind::kRemote, "no new connection to " + label + " for " + seconds +
                                        ": sites ban addresses that connect too often");
  if (wait > kSilentWait)
    log::info("waiting before a new connection: sites ban addresses that connect too often",
              {{"host", label}, {"wait", seconds}});
  if (wait > 0ns) clock_.sleep(wait, StopScope::current());
  StopScope::check("waiting to connect to " + label);
}

// A failure of this host itself, not of a jump host before it.
void Connector::note_failure(const SshHost& host, const Error& error) {
  limits_->failed(host_label(host));
  if (error.kind() == ErrorKind::kRemote) down_[host_label(host)] = {now(), error.what()};
}

std::shared_ptr<Connection> Connector::connect_to(const SshHost& host,
                                                  const Credentials& credentials, const Ask* ask) {
  for (const SshHost& jump : settings_.jump) pinned(jump, ask);
  pinned(host, ask);  // before any network access
  check_refusals(host, credentials, ask);
  std::shared_ptr<void> below;
  UniqueFd socket = reach(host, credentials, below, ask);
  auto connection = log_in(host, std::move(socket), std::move(below), credentials, ask);
  log::info("connected", {{"host", host_label(host)}, {"user", settings_.user}});
  return connection;
}

UniqueFd Connector::reach(const SshHost& host, const Credentials& credentials,
                          std::shared_ptr<void>& below, const Ask* ask) {
  std::shared_ptr<Connection> through;
  const auto next = [&](const SshHost& at) {
    wait_for_limits(at);
    try {
      if (!through) return connect_tcp(at, settings_.timeouts);
      auto tunnel = std::make_shared<Tunnel>(through, at);
      UniqueFd socket = tunnel->take_socket();
      below = std::move(tunnel);
      return socket;
    } catch (const Error& error) {
      note_failure(at, error);
      throw;
    }
  };
  try {
    for (const SshHost& jump : settings_.jump) check_refusals(jump, credentials, ask);
    for (const SshHost& jump : settings_.jump) {
      UniqueFd socket = next(jump);
      through = log_in(jump, std::move(socket), below, credentials, ask);
    }
  } catch (const RefusedLogIn& refusal) {  // no other host can be reached either
    throw Error(refusal.kind(), refusal.what());
  }
  return next(host);
}

std::shared_ptr<Connection> Connector::log_in(const SshHost& host, UniqueFd socket,
                                              std::shared_ptr<void> below,
                                              const Credentials& credentials, const Ask* ask) {
  const std::string label = host_label(host);
  const std::vector<PublicKey> keys = pinned(host, ask);
  SessionPtr session;
  try {
    session = exchange_keys(settings_, host, std::move(socket), keys);
    check_host_key(settings_, host, server_key(session.get()), keys);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kRemote) note_failure(host, error);
    if (error.kind() != ErrorKind::kAuth) throw;
    wrong_keys_[label] = {keys, error.what(), now()};
    throw KeyProblem{error};
  }
  wrong_keys_.erase(label);
  warned_.erase(label);
  bool is_unanswered = false;
  const Ask watched = [&](const std::string& prompt, bool echo) {
    is_unanswered = true;
    std::string answer = (*ask)(prompt, echo);
    is_unanswered = false;
    return answer;
  };
  try {
    authenticate(session.get(), settings_, host, credentials, ask != nullptr ? &watched : nullptr);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kRemote) note_failure(host, error);
    if (error.kind() != ErrorKind::kAuth) throw;
    log::info("log-in refused", {{"host", label}, {"why", error.what()}});
    note_refusal(host, credentials, error.what());
    throw RefusedLogIn(error.what(), is_unanswered);
  }
  for (const bool extra : {false, true}) refusals_.erase({label, extra});
  limits_->succeeded(label);
  return std::make_shared<Connection>(std::move(session), label, settings_.timeouts,
                                      std::move(below));
}

Connector::Greeting Connector::greet(const SshHost& host, const std::vector<PublicKey>& wanted) {
  const auto held = lock();
  Greeting greeting;
  try {
    const Ask* ask = ask_ ? &ask_ : nullptr;
    for (const SshHost& jump : settings_.jump) pinned(jump, ask);
    const Credentials credentials = settings_.jump.empty() ? Credentials{} : check_credentials(ask);
    UniqueFd socket = reach(host, credentials, greeting.below, ask);
    greeting.session = exchange_keys(settings_, host, std::move(socket), wanted);
  } catch (const KeyProblem& problem) {  // of a jump host
    throw problem.error;
  }
  return greeting;
}

}  // namespace xffl::remote
