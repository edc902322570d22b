// Log-ins with a real sshd: keys, certificates, agent, host keys.
#include <arpa/inet.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "connector.h"
#include "known_hosts.h"
#include "ssh_test.h"
#include "support/fake_clock.h"
#include "support/free_port.h"
#include "wire.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

class SshLogIn : public SshTest {};

void expect_kind(const Error& error, ErrorKind kind) {
  EXPECT_EQ(error.kind(), kind) << error.what();
}

TEST_F(SshLogIn, AllCallsShareOneConnection) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  EXPECT_EQ(sshd.connections(), 0);
  for (int i = 0; i < 5; ++i) expect_works(*session);
  EXPECT_EQ(sshd.connections(), 1);
  EXPECT_FALSE(credential_expiry(sshd.settings()));
}

TEST_F(SshLogIn, WorksWithEveryKeyType) {
  test::Sshd sshd({.host_key_type = "ecdsa"});
  auto settings = sshd.settings();
  for (const char* type : {"rsa", "ecdsa"}) {
    settings.keys = {sshd.make_key(type, type)};
    std::ofstream(sshd.dir() / "authorized_keys", std::ios::app)
        << read_file(settings.keys[0].string() + ".pub", 10'000);
    expect_works(*make_ssh_session(settings));
  }
}

// The host has lost one of its trusted keys, which is of another type.
TEST_F(SshLogIn, AHostMayHaveSeveralTrustedKeys) {
  test::Sshd sshd({.host_key_type = "ecdsa"});
  const std::string known = read_file(sshd.known_hosts(), 10'000);
  const std::string lost =
      known.substr(0, known.find(' ') + 1) + read_file(sshd.dir() / "ca.pub", 10'000);
  for (const std::string& keys : {lost + known, known + lost}) {
    write_file_atomic(sshd.known_hosts(), keys);
    expect_works(*make_ssh_session(sshd.settings()));
  }
}

// The host would accept the first key.
TEST_F(SshLogIn, DoesNotOfferAKeyThatOthersCanRead) {
  test::Sshd sshd;
  auto settings = sshd.settings();
  settings.keys = {sshd.key(), sshd.make_key("other")};
  std::filesystem::permissions(sshd.key(), std::filesystem::perms(0640));
  const Error error = error_of([&] { expect_works(*make_ssh_session(settings)); });
  expect_kind(error, ErrorKind::kAuth);
  EXPECT_THAT(error.what(), HasSubstr("chmod 600"));
  EXPECT_EQ(sshd.count("Accepted"), 0);
}

TEST_F(SshLogIn, AnUnusableOrRefusedKeyDoesNotHideTheOthers) {
  test::Sshd sshd;
  auto settings = sshd.settings();
  settings.keys = {sshd.make_key("readable"), sshd.make_key("refused"), sshd.key()};
  std::filesystem::permissions(settings.keys[0], std::filesystem::perms(0640));
  expect_works(*make_ssh_session(settings));
  EXPECT_EQ(sshd.count("Accepted publickey"), 1);
}

TEST_F(SshLogIn, UsesTheCertificateOfTheKey) {
  test::Sshd sshd({.authorize_key = false});
  sshd.certify("-1m:+2h", test::own_user());
  expect_works(*make_ssh_session(sshd.settings()));
  EXPECT_EQ(sshd.count("Accepted publickey"), 1);
  const auto left = credential_expiry(sshd.settings()).value() - SystemClock().utc();
  EXPECT_GT(left, 119min);
  EXPECT_LE(left, 2h);
}

TEST_F(SshLogIn, AnExpiredCertificateCostsNoConnectionAndARenewedOneWorks) {
  test::Sshd sshd({.authorize_key = false});
  sshd.certify("-2h:-1h", test::own_user());
  const auto session = make_ssh_session(sshd.settings());
  for (int i = 0; i < 3; ++i) {
    const Error error = error_of([&] { expect_works(*session); });
    expect_kind(error, ErrorKind::kAuth);
    EXPECT_THAT(error.what(), HasSubstr("id-cert.pub expired at "));
  }
  EXPECT_EQ(sshd.connections(), 0);
  EXPECT_LT(credential_expiry(sshd.settings()).value(), SystemClock().utc());
  sshd.certify("-1m:+1h", test::own_user());
  expect_works(*session);
}

TEST_F(SshLogIn, AfterTwoRefusalsRetriesOnlyWhenTheCredentialChanges) {
  test::Sshd sshd({.authorize_key = false});
  sshd.certify("-1m:+1h", "somebody-else");
  test::FakeClock clock;
  const auto session = make_ssh_session(sshd.settings(), std::make_shared<ConnectionLimits>(clock));
  for (int i = 0; i < 6; ++i) {
    const Error error = error_of([&] { expect_works(*session); });
    expect_kind(error, ErrorKind::kAuth);
    EXPECT_THAT(error.what(), HasSubstr("for the user somebody-else"));
    clock.advance(5min);
  }
  EXPECT_EQ(sshd.connections(), 2);
  EXPECT_EQ(sshd.count("Certificate invalid: name is not a listed principal"), 2);
  sshd.certify("-1m:+1h", test::own_user());
  expect_works(*session);
  EXPECT_EQ(sshd.connections(), 3);
}

// The tries of the credential before do not count.
TEST_F(SshLogIn, ANewCredentialMayBeRefusedTwiceAgain) {
  test::Sshd sshd({.authorize_key = false});
  test::FakeClock clock;
  const auto session = make_ssh_session(sshd.settings(), std::make_shared<ConnectionLimits>(clock));
  int connections = 0;
  for (const char* user : {"somebody-else", "someone-new"}) {
    sshd.certify("-1m:+1h", user);
    for (int i = 0; i < 6; ++i) {
      expect_kind(error_of([&] { expect_works(*session); }), ErrorKind::kAuth);
      clock.advance(5min);
    }
    EXPECT_EQ(sshd.connections(), connections += 2) << user;
  }
}

// A node that has just booted refuses every key until its home folders are mounted. The coordinator
// asks again after seconds.
TEST_F(SshLogIn, AKeyThatIsRefusedForAMomentWorksAfterFiveMinutes) {
  test::Sshd sshd;
  test::FakeClock clock;
  const auto session = make_ssh_session(sshd.settings(), std::make_shared<ConnectionLimits>(clock));
  const auto keys = sshd.dir() / "authorized_keys", away = sshd.dir() / "away";
  std::filesystem::rename(keys, away);
  expect_kind(error_of([&] { expect_works(*session); }), ErrorKind::kAuth);
  for (int i = 0; i < 3; ++i) {
    clock.advance(99s);
    const Error error = error_of([&] { expect_works(*session); });
    expect_kind(error, ErrorKind::kAuth);
    EXPECT_THAT(error.what(),
                HasSubstr("(refused once; the next try is due at 2026-01-01T00:05:00"));
  }
  EXPECT_EQ(sshd.connections(), 1);
  std::filesystem::rename(away, keys);
  clock.advance(3s);
  expect_works(*session);
  EXPECT_EQ(sshd.connections(), 2);
}

TEST_F(SshLogIn, AUserWhoLogsInDoesNotWaitAfterARefusal) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  const auto keys = sshd.dir() / "authorized_keys", away = sshd.dir() / "away";
  std::filesystem::rename(keys, away);
  expect_kind(error_of([&] { expect_works(*session); }), ErrorKind::kAuth);
  std::filesystem::rename(away, keys);
  log_in(*session, [](const std::string&, bool) { return std::string("unasked"); });
  expect_works(*session);
  EXPECT_EQ(sshd.connections(), 2);
}

TEST_F(SshLogIn, AnAcceptedLogInClearsEarlierRefusals) {
  test::Sshd sshd;
  test::FakeClock clock;
  const auto session = make_ssh_session(sshd.settings(), std::make_shared<ConnectionLimits>(clock));
  const auto keys = sshd.dir() / "authorized_keys", away = sshd.dir() / "away";
  for (int i = 0; i < 2; ++i) {
    std::filesystem::rename(keys, away);
    sshd.stop();
    sshd.start();
    Error error = error_of([&] { expect_works(*session); });
    // The first error may be the end of the old link.
    if (error.kind() == ErrorKind::kRemote) error = error_of([&] { expect_works(*session); });
    expect_kind(error, ErrorKind::kAuth);
    std::filesystem::rename(away, keys);
    clock.advance(5min);
    expect_works(*session);
  }
}

// A host with a second factor refuses the further connections of a transfer, which log in without
// prompts; any host may refuse a key for some minutes.
TEST_F(SshLogIn, RefusedFurtherConnectionsForbidNoLogIn) {
  for (const bool has_ask : {true, false}) {
    test::Sshd sshd;
    test::FakeClock clock;
    const Ask ask = [](const std::string&, bool) { return std::string("unasked"); };
    Connector connector(sshd.settings(), std::make_shared<ConnectionLimits>(clock),
                        has_ask ? ask : Ask());
    const auto connection = connector.get();
    const auto keys = sshd.dir() / "authorized_keys", away = sshd.dir() / "away";
    std::filesystem::rename(keys, away);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(connector.get_several(3).size(), 1u);
      clock.advance(6min);
    }
    EXPECT_EQ(sshd.connections(), 3) << "two refused ones";
    std::filesystem::rename(away, keys);
    connection->with([](ssh_session session) { ssh_disconnect(session); });
    EXPECT_NE(connector.get(), connection);
    EXPECT_EQ(connector.get_several(3).size(), 3u) << "the log-in has cleared the refusals";
  }
}

// The name may lead to a second node, whose key is not trusted.
TEST_F(SshLogIn, AWrongKeyOfAFurtherConnectionEndsNoTransfer) {
  test::Sshd sshd;
  test::FakeClock clock;
  Connector connector(sshd.settings(), std::make_shared<ConnectionLimits>(clock));
  const auto connection = connector.get();
  const std::string known = read_file(sshd.known_hosts(), 10'000);
  write_file_atomic(sshd.known_hosts(), known.substr(0, known.find(' ') + 1) +
                                            read_file(sshd.dir() / "ca.pub", 10'000));
  EXPECT_EQ(connector.get_several(3), std::vector{connection});
  write_file_atomic(sshd.known_hosts(), known);
  EXPECT_EQ(connector.get_several(3).size(), 1u) << "a pause after the failure";
  clock.advance(5min);
  EXPECT_EQ(connector.get_several(3).size(), 3u);
}

TEST_F(SshLogIn, ADisconnectionAfterTooManyKeysIsARefusal) {
  test::Sshd sshd({.config = {"MaxAuthTries 2"}, .authorize_key = false});
  auto settings = sshd.settings();
  settings.keys = {sshd.key(), sshd.make_key("two"), sshd.make_key("three")};
  test::FakeClock clock;
  const auto session = make_ssh_session(settings, std::make_shared<ConnectionLimits>(clock));
  for (int i = 0; i < 4; ++i) {
    expect_kind(error_of([&] { expect_works(*session); }), ErrorKind::kAuth);
    clock.advance(5min);
  }
  EXPECT_EQ(sshd.connections(), 2);
}

// The host wants another kind of factor then, and counts further keys as failures.
TEST_F(SshLogIn, NoKeyIsOfferedAfterTheFirstFactor) {
  test::Sshd sshd(
      {.config = {"PasswordAuthentication yes", "AuthenticationMethods publickey,password"}});
  auto settings = sshd.settings();
  settings.keys = {sshd.key(), sshd.make_key("two")};
  const Error error = error_of([&] { expect_works(*make_ssh_session(settings)); });
  expect_kind(error, ErrorKind::kAuth);
  EXPECT_THAT(error.what(), HasSubstr("id: accepted as the first factor"));
  EXPECT_THAT(error.what(), Not(HasSubstr("two: refused")));
}

TEST_F(SshLogIn, DoesNotPromptForAPassphrase) {
  test::Sshd sshd;
  auto settings = sshd.settings();
  settings.keys = {sshd.make_key("locked")};
  test::must_run(
      {"ssh-keygen", "-q", "-p", "-N", "secret phrase", "-f", settings.keys[0].string()});
  const Error error = error_of([&] { expect_works(*make_ssh_session(settings)); });
  expect_kind(error, ErrorKind::kAuth);
  EXPECT_THAT(error.what(), HasSubstr("add it to the agent"));
}

TEST_F(SshLogIn, WithoutAKeyThereIsNoConnection) {
  test::Sshd sshd;
  auto settings = sshd.settings();
  settings.keys = {sshd.dir() / "absent"};
  expect_kind(error_of([&] { expect_works(*make_ssh_session(settings)); }), ErrorKind::kAuth);
  EXPECT_EQ(sshd.connections(), 0);
}

// A private ssh-agent, set as SSH_AUTH_SOCK during its lifetime.
class Agent {
 public:
  explicit Agent(const test::TempDir& dir) : socket_(dir / "agent") {
    pid_ = start_detached({.argv = {"ssh-agent", "-D", "-a", socket_.string()}}, dir / "agent.log");
    for (int i = 0; i < 500 && !std::filesystem::exists(socket_); ++i)
      std::this_thread::sleep_for(10ms);
    ::setenv("SSH_AUTH_SOCK", socket_.c_str(), 1);
  }
  ~Agent() {
    ::kill(pid_, SIGTERM);
    ::unsetenv("SSH_AUTH_SOCK");
  }
  void add(const std::filesystem::path& key) { test::must_run({"ssh-add", "-q", key.string()}); }
  void forget() { test::must_run({"ssh-add", "-q", "-D"}); }

 private:
  std::filesystem::path socket_;
  pid_t pid_;
};

TEST_F(SshLogIn, UsesTheAgentsCertificateAndItsExpiry) {
  test::Sshd sshd({.authorize_key = false});
  Agent agent(sshd.dir());
  auto settings = sshd.settings();
  settings.keys = {};
  settings.agent = true;
  ::setenv("HOME", (sshd.dir() / "home").c_str(), 1);  // a home folder without keys
  const auto session = make_ssh_session(settings);
  const auto names_the_agent = HasSubstr("the SSH agent at " + (sshd.dir() / "agent").string());
  const Error without_key = error_of([&] { expect_works(*session); });
  expect_kind(without_key, ErrorKind::kAuth);
  EXPECT_THAT(without_key.what(), names_the_agent);
  EXPECT_STREQ(error_of([&] { expect_works(*session); }).what(), without_key.what());
  sshd.certify("-2h:-1h", test::own_user());
  agent.add(sshd.key());
  agent.forget();
  expect_kind(error_of([&] { expect_works(*session); }), ErrorKind::kAuth);
  EXPECT_EQ(sshd.connections(), 0);
  sshd.certify("-1m:+2h", test::own_user());
  agent.add(sshd.key());
  expect_works(*session);
  EXPECT_GT(credential_expiry(settings).value() - SystemClock().utc(), 119min);
  sshd.certify("-1m:+1h", test::own_user());
  agent.add(sshd.key());
  EXPECT_GT(credential_expiry(settings).value() - SystemClock().utc(), 119min) << "the latest one";
  settings.agent = false;
  expect_kind(error_of([&] { expect_works(*make_ssh_session(settings)); }), ErrorKind::kAuth);
  settings.agent = true;
  const auto time_left = [&] { return credential_expiry(settings).value() - SystemClock().utc(); };
  settings.keys = {sshd.dir() / "absent"};
  EXPECT_GT(time_left(), 119min) << "the agent has the only credential";
  settings.keys = {sshd.key()};
  EXPECT_LT(time_left(), 61min) << "a log-in offers the named key first";
  settings.keys = {};
  make_dirs(sshd.dir() / "home/.ssh");
  write_file_atomic(sshd.dir() / "home/.ssh/id_rsa", "a private key\n");
  EXPECT_GT(time_left(), 119min) << "a log-in offers the agent's keys first";
}

TEST_F(SshLogIn, AKeyAddedToTheAgentIsTriedAfterTwoRefusals) {
  test::Sshd sshd;
  Agent agent(sshd.dir());
  agent.add(sshd.make_key("refused"));
  auto settings = sshd.settings();
  settings.keys = {sshd.dir() / "absent"};
  settings.agent = true;
  test::FakeClock clock;
  const auto session = make_ssh_session(settings, std::make_shared<ConnectionLimits>(clock));
  for (int i = 0; i < 3; ++i) {
    const Error error = error_of([&] { expect_works(*session); });
    expect_kind(error, ErrorKind::kAuth);
    EXPECT_THAT(error.what(), HasSubstr("the SSH agent at " + (sshd.dir() / "agent").string()));
    clock.advance(5min);
  }
  EXPECT_EQ(sshd.connections(), 2);
  agent.add(sshd.key());
  expect_works(*session);
}

// An agent with one key, which waits for its user when it has to sign.
class WaitingAgent {
 public:
  WaitingAgent(const test::TempDir& dir, const std::string& public_key, std::function<void()> waits)
      : waits_(std::move(waits)) {
    const std::string path = dir / "waiting-agent";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    ::setenv("SSH_AUTH_SOCK", path.c_str(), 1);
    std::istringstream words(public_key);
    std::string type, blob;
    words >> type >> blob;
    const std::string body =
        WireWriter().u8(12).u32(1).string(base64_decode(blob).value()).string("").bytes();
    identities_ = WireWriter().u32(static_cast<uint32_t>(body.size())).bytes() + body;
    thread_ = std::jthread([this] { serve(); });
  }
  ~WaitingAgent() {
    ::unsetenv("SSH_AUTH_SOCK");
    ::shutdown(listener_.get(), SHUT_RDWR);
  }

 private:
  void serve() {
    for (;;) {
      const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
      if (!client) return;
      unsigned char request[5];
      while (::recv(client.get(), request, sizeof request, MSG_WAITALL) == sizeof request) {
        if (request[4] == 11)
          ::send(client.get(), identities_.data(), identities_.size(), MSG_NOSIGNAL);
        else
          wait_for_the_end(client.get());
      }
    }
  }
  void wait_for_the_end(int client) {
    waits_();
    std::string rest(1000, '\0');
    while (::recv(client, rest.data(), rest.size(), 0) > 0) {
    }
  }

  const std::function<void()> waits_;
  const UniqueFd listener_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string identities_;
  std::jthread thread_;
};

TEST_F(SshLogIn, AnAgentThatWaitsForItsUserHoldsUpNoLogIn) {
  test::Sshd sshd;
  std::stop_source stop;
  std::atomic<bool> stops = false;
  const WaitingAgent agent(sshd.dir(), read_file(sshd.key().string() + ".pub", 10'000), [&] {
    if (stops) stop.request_stop();
  });
  auto settings = sshd.settings();
  settings.keys = {sshd.dir() / "absent"};
  settings.agent = true;
  settings.timeouts.log_in = 1s;
  const Error error = error_of([&] { expect_works(*make_ssh_session(settings)); });
  expect_kind(error, ErrorKind::kAuth);
  EXPECT_THAT(error.what(), HasSubstr("the agent, which has not answered"));
  stops = true;
  settings.timeouts.log_in = 1h;
  const StopScope scope(stop.get_token());
  expect_kind(error_of([&] { expect_works(*make_ssh_session(settings)); }), ErrorKind::kCancelled);
}

// The host ends a log-in after two refused keys.
TEST_F(SshLogIn, OffersTheNamedKeysBeforeTheAgents) {
  test::Sshd sshd({.config = {"MaxAuthTries 2"}});
  Agent agent(sshd.dir());
  for (const char* name : {"one", "two", "three"}) agent.add(sshd.make_key(name));
  auto settings = sshd.settings();
  settings.agent = true;
  expect_works(*make_ssh_session(settings));
}

TEST_F(SshLogIn, AnUnknownHostIsTrustedOnlyByCommand) {
  test::Sshd sshd;
  const auto settings = sshd.settings();
  std::filesystem::remove(sshd.known_hosts());
  const auto session = make_ssh_session(settings);
  const Error error = error_of([&] { expect_works(*session); });
  expect_kind(error, ErrorKind::kAuth);
  EXPECT_THAT(error.what(), HasSubstr("xffl trust test"));
  EXPECT_EQ(sshd.connections(), 0);
  EXPECT_TRUE(trusted_keys(settings, settings.hosts[0]).empty());

  const HostKey shown = fetch_host_key(settings, settings.hosts[0]);
  EXPECT_THAT(test::must_run({"ssh-keygen", "-l", "-f", (sshd.dir() / "host_key.pub").string()}),
              HasSubstr(shown.fingerprint));
  EXPECT_EQ(sshd.count("Accepted"), 0);
  trust(settings, shown);
  ASSERT_EQ(trusted_keys(settings, settings.hosts[0]).size(), 1u);
  EXPECT_EQ(trusted_keys(settings, settings.hosts[0])[0].fingerprint, shown.fingerprint);
  expect_works(*session);
}

TEST_F(SshLogIn, AChangedHostKeyIsRejectedBeforeAuthentication) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  expect_works(*session);
  const std::string old = trusted_keys(sshd.settings(), sshd.settings().hosts[0])[0].fingerprint;
  sshd.stop();
  sshd.change_host_key();
  sshd.start();
  const int before = sshd.connections();
  std::string last;
  for (int i = 0; i < 4; ++i) {
    Error error = error_of([&] { expect_works(*session); });
    // The first error may be the end of the old link.
    if (i == 0 && error.kind() == ErrorKind::kRemote)
      error = error_of([&] { expect_works(*session); });
    expect_kind(error, ErrorKind::kAuth);
    EXPECT_THAT(error.what(), HasSubstr("HOST KEY CHANGED"));
    EXPECT_THAT(error.what(), HasSubstr(old));
    EXPECT_THAT(error.what(), HasSubstr("xffl trust test"));
    last = error.what();
  }
  EXPECT_EQ(sshd.connections(), before + 1);       // one connection; the result is remembered
  EXPECT_EQ(sshd.count("Accepted publickey"), 1);  // before the change
  const HostKey shown = fetch_host_key(sshd.settings(), sshd.settings().hosts[0]);
  EXPECT_NE(shown.fingerprint, old);
  EXPECT_THAT(last, HasSubstr("now shows " + shown.type + " " + shown.fingerprint));
  trust(sshd.settings(), shown);
  expect_works(*session);
}

// A reinstalled node shows a fresh key until the site's tools have restored the old one.
TEST_F(SshLogIn, AHostKeyThatIsWrongForAWhileIsAskedForAgain) {
  test::Sshd sshd;
  test::FakeClock clock;
  const auto limits = std::make_shared<ConnectionLimits>(clock);
  const auto waiting = make_ssh_session(sshd.settings(), limits);
  const auto restored = make_ssh_session(sshd.settings(), limits);
  sshd.stop();
  for (const char* name : {"host_key", "host_key.pub"})
    std::filesystem::rename(sshd.dir() / name, sshd.dir() / (std::string("old_") + name));
  sshd.change_host_key();
  sshd.start();
  for (Session* each : {waiting.get(), restored.get()}) {
    const Error error = error_of([&] { expect_works(*each); });
    expect_kind(error, ErrorKind::kAuth);
    EXPECT_THAT(error.what(), HasSubstr("HOST KEY CHANGED"));
  }
  sshd.stop();
  for (const char* name : {"host_key", "host_key.pub"})
    std::filesystem::rename(sshd.dir() / (std::string("old_") + name), sshd.dir() / name);
  sshd.start();
  clock.advance(14min);
  expect_kind(error_of([&] { expect_works(*waiting); }), ErrorKind::kAuth);
  EXPECT_EQ(sshd.connections(), 2) << "the wrong key is remembered";
  log_in(*restored, [](const std::string&, bool) { return std::string("unasked"); });
  expect_works(*restored);
  EXPECT_EQ(sshd.connections(), 3) << "a user need not wait";
  for (const pid_t pid : sshd.session_processes()) ::kill(pid, SIGKILL);
  EXPECT_TRUE(test::await([&] {  // reconnects after the lost link
    const test::Thrown lost = test::thrown_by([&] { expect_works(*restored); });
    EXPECT_NE(lost.kind, ErrorKind::kAuth) << "the right key ends the pause: " << lost.message;
    return lost.kind != ErrorKind::kRemote;
  }));
  const int before = sshd.connections();
  clock.advance(1min);
  expect_works(*waiting);
  EXPECT_EQ(sshd.connections(), before + 1);
}

// One of two log-in nodes shows a new key: the other one serves, and the log says it once.
TEST_F(SshLogIn, ALogInNodeWithAChangedKeyDoesNotHideTheOthers) {
  test::Sshd changed, good;
  SshSettings settings = changed.settings();
  settings.hosts = {changed.settings().hosts[0], good.settings().hosts[0]};
  settings.keys = {good.key()};
  settings.known_hosts = changed.dir() / "both";
  write_file_atomic(settings.known_hosts, read_file(changed.known_hosts(), 10'000) +
                                              read_file(good.known_hosts(), 10'000));
  changed.stop();
  changed.change_host_key();
  changed.start();
  const auto log_file = changed.dir() / "xffl.log";
  log::set_file(log_file);
  const auto session = make_ssh_session(settings);
  expect_works(*session);
  for (const pid_t pid : good.session_processes()) ::kill(pid, SIGKILL);
  EXPECT_TRUE(test::await([&] {  // reconnects after the lost link
    try {
      expect_works(*session);
      return true;
    } catch (const Error& error) {
      expect_kind(error, ErrorKind::kRemote);
      return false;
    }
  }));
  log::set_file({});
  EXPECT_GE(good.connections(), 2);
  EXPECT_EQ(changed.connections(), 1) << "the changed key is remembered";
  EXPECT_EQ(changed.count("Accepted"), 0) << "no credential was sent";
  const std::string log = read_file(log_file, 1 << 20);
  const size_t told = log.find("a log-in node is not used");
  EXPECT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("a log-in node is not used", told + 1), std::string::npos) << log;
  EXPECT_THAT(log, HasSubstr("xffl trust test"));
  // With the other node down the error is that of an outage; it names the changed key, too.
  good.stop();
  const Error both = error_of([&] {
    for (int i = 0; i < 2; ++i) try {
        expect_works(*session);
      } catch (const Error&) {  // the first error may be the end of the old link
        if (i == 1) throw;
      }
  });
  expect_kind(both, ErrorKind::kRemote);
  EXPECT_THAT(both.what(), HasSubstr("HOST KEY CHANGED"));
}

TEST_F(SshLogIn, AHostKeyOfAnotherTypeIsAChangedKey) {
  test::Sshd sshd({.host_key_type = "rsa"});
  const auto settings = sshd.settings();
  expect_works(*make_ssh_session(settings));
  HostKey other = fetch_host_key(settings, settings.hosts[0]);
  const std::string ed25519 = read_file(sshd.dir() / "ca.pub", 10'000);
  other.line = "[127.0.0.1]:" + std::to_string(sshd.port()) + " " + ed25519;
  trust(settings, other);
  const Error error = error_of([&] { expect_works(*make_ssh_session(settings)); });
  expect_kind(error, ErrorKind::kAuth);
  EXPECT_THAT(error.what(), HasSubstr("HOST KEY CHANGED"));
  const HostKey shown = fetch_host_key(settings, settings.hosts[0]);
  EXPECT_EQ(shown.fingerprint, other.fingerprint);
  trust(settings, shown);
  expect_works(*make_ssh_session(settings));
}

// Binds a hostile ~/.ssh/config and /etc/ssh/ssh_config over the real ones, for this thread and its
// children only. libssh takes the home folder from the account's entry, not from HOME.
void bind_hostile_config(const std::filesystem::path& home) {
  ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
  ASSERT_EQ(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  const std::string own = ::getpwuid(::geteuid())->pw_dir;
  ASSERT_EQ(::mount(home.c_str(), own.c_str(), nullptr, MS_BIND, nullptr), 0);
  const char* global = "/etc/ssh/ssh_config";
  if (std::filesystem::exists(global)) {
    ASSERT_EQ(::mount((home / ".ssh/global").c_str(), global, nullptr, MS_BIND, nullptr), 0);
  }
}

TEST_F(SshLogIn, IgnoresSshConfig) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can bind a file over ssh_config";
  test::Sshd sshd;
  const auto home = sshd.dir() / "hostile";
  std::filesystem::create_directories(home / ".ssh");
  const auto ran = [&](const std::string& name) { return (sshd.dir() / ("ran-" + name)).string(); };
  std::ofstream(home / ".ssh/included") << "Match exec \"touch " << ran("include") << "\"\n";
  std::ofstream(home / ".ssh/global") << "Match exec \"touch " << ran("global") << "\"\n";
  std::ofstream(home / ".ssh/config")
      << "Match exec \"touch " << ran("match") << "\"\n  User nobody\nHost *\n  ProxyCommand touch "
      << ran("proxy") << "\n  PermitLocalCommand yes\n  LocalCommand touch " << ran("local")
      << "\n  KnownHostsCommand /usr/bin/touch " << ran("known") << "\n  Port 1\n  User nobody\n"
      << "Include " << (home / ".ssh/included").string() << "\n";
  for (const char* name : {"config", "included", "global"})
    ::chmod((home / ".ssh" / name).c_str(), 0600);
  const auto marks = [&] {
    std::vector<std::string> found;
    for (const char* name : {"match", "include", "global", "proxy", "local", "known"})
      if (std::filesystem::exists(ran(name))) found.push_back(name);
    return found;
  };
  std::thread([&] {
    bind_hostile_config(home);
    expect_works(*make_ssh_session(sshd.settings()));
    fetch_host_key(sshd.settings(), sshd.settings().hosts[0]);
    EXPECT_EQ(marks(), std::vector<std::string>{});
    test::must_run({"ssh", "-G", "127.0.0.1"});  // a program that does read the files
    EXPECT_THAT(marks(), testing::IsSupersetOf({"match", "include"})) << "the test has a bug";
  }).join();
}

// Accepts connections and closes them at once, as a firewall that rejects a banned address does.
class BanningHost {
 public:
  BanningHost() : port_(test::free_port()), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    thread_ = std::jthread([this] {
      for (;;) {
        const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
        if (!client) return;
      }
    });
  }
  ~BanningHost() { ::shutdown(listener_.get(), SHUT_RDWR); }
  int port() const { return port_; }

 private:
  const int port_;
  const UniqueFd listener_;
  std::jthread thread_;
};

// Asks for a connection as early as the limits allow one, for `duration` of simulated time, and
// returns the times of the attempts.
std::vector<std::chrono::nanoseconds> attempts_within(std::chrono::nanoseconds duration,
                                                      const SshSettings& settings) {
  test::FakeClock clock;
  const auto limits = std::make_shared<ConnectionLimits>(clock);
  Connector connector(settings, limits);
  const std::string label = host_label(settings.hosts[0]);
  const auto attempt = [&] {
    const std::string text = error_of([&] { connector.get(); }).what();
    return text.find("sites ban addresses") == std::string::npos &&
           text.find("next try is due") == std::string::npos &&
           text.find("not retried until") == std::string::npos;
  };
  std::vector<std::chrono::nanoseconds> attempts;
  while (clock.elapsed() < duration) {
    if (const auto wait = limits->wait(label); wait > 0ns) {
      // A shorter wait would be one in real time.
      if (wait > 3s) {
        EXPECT_FALSE(attempt());
      }
      clock.advance(wait);
    }
    const auto now = clock.elapsed();
    if (attempt()) attempts.push_back(now);
    clock.advance(1s);
  }
  return attempts;
}

TEST_F(SshLogIn, AFacilityThatRefusesTheKeyGetsTwoLogInsInThreeHours) {
  test::Sshd sshd({.authorize_key = false});
  EXPECT_EQ(attempts_within(3h, sshd.settings()).size(), 2u);
  EXPECT_EQ(sshd.connections(), 2);
}

TEST_F(SshLogIn, AHostThatBansTheAddressGetsSixConnectionsAMinuteAndSixtyAnHour) {
  test::Sshd sshd;  // its host key is trusted
  const BanningHost ban;
  SshSettings settings = sshd.settings();
  settings.hosts = {{"127.0.0.1", ban.port()}};
  std::string known = read_file(settings.known_hosts, 10'000);
  const std::string port = std::to_string(sshd.port());
  known.replace(known.find(port), port.size(), std::to_string(ban.port()));
  write_file_atomic(settings.known_hosts, known);
  const auto attempts = attempts_within(3h, settings);
  EXPECT_GT(attempts.size(), 100u) << "the host is tried again when the ban may have ended";
  const auto most_within = [&](std::chrono::nanoseconds window) {
    size_t most = 0;
    for (size_t first = 0, last = 0; last < attempts.size(); ++last) {
      while (attempts[last] - attempts[first] >= window) ++first;
      most = std::max(most, last - first + 1);
    }
    return most;
  };
  EXPECT_LE(most_within(1min), 6u);
  EXPECT_LE(most_within(1h), 60u);
}

// A host that refuses connections at once: the time is that of the wait.
TEST_F(SshLogIn, WaitsForTheLimitBeforeItConnects) {
  test::Sshd sshd;  // its host key is trusted
  sshd.stop();
  test::FakeClock clock;
  const auto limits = std::make_shared<ConnectionLimits>(clock);
  Connector connector(sshd.settings(), limits);
  for (int i = 0; i < 6; ++i) limits->start(host_label(sshd.settings().hosts[0]), 0ns);
  clock.advance(59'200ms);  // of the minute of the first attempt
  const auto began = std::chrono::steady_clock::now();
  expect_kind(error_of([&] { connector.get(); }), ErrorKind::kRemote);
  EXPECT_GE(std::chrono::steady_clock::now() - began, 800ms);
}

// The host was down for a while, and is down for a moment much later.
TEST_F(SshLogIn, AnAcceptedLogInEndsTheLongPauses) {
  test::Sshd sshd;
  test::FakeClock clock;
  const auto limits = std::make_shared<ConnectionLimits>(clock);
  const std::string label = host_label(sshd.settings().hosts[0]);
  Connector connector(sshd.settings(), limits);
  const auto fail = [&] {
    clock.advance(1min);
    expect_kind(error_of([&] { connector.get(); }), ErrorKind::kRemote);
  };
  sshd.stop();
  for (int i = 0; i < 4; ++i) fail();
  EXPECT_GT(limits->wait(label), 5s);
  sshd.start();
  clock.advance(1min);
  const auto connection = connector.get();
  sshd.stop();
  ASSERT_TRUE(test::await([&] { return !connection->alive(); }));
  fail();
  EXPECT_LE(limits->wait(label), 1250ms);
}

// As `xffl doctor` does, which asks one facility after the other.
TEST_F(SshLogIn, APatientConnectorWaitsForTheMinutesLimit) {
  test::Sshd sshd;
  test::FakeClock clock;
  const std::string label = host_label(sshd.settings().hosts[0]);
  for (const auto longest_wait : {3s, 61s}) {
    const auto limits = std::make_shared<ConnectionLimits>(clock, longest_wait);
    for (int i = 0; i < 6; ++i) limits->start(label, 0ns);
    clock.advance(56s);  // the seventh connection may begin in 4 s
    Connector connector(sshd.settings(), limits);
    if (longest_wait == 3s) {
      EXPECT_THAT(error_of([&] { connector.get(); }).what(), HasSubstr("no new connection"));
    } else {
      EXPECT_TRUE(connector.get()->alive());
    }
  }
}

// A silent connection: sshd counts it as unauthenticated (MaxStartups).
UniqueFd occupy(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

TEST_F(SshLogIn, ReconnectsSlowlyToAHostThatDropsConnections) {
  test::Sshd sshd({.config = {"MaxStartups 1:100:1"}});
  UniqueFd occupant = occupy(sshd.port());
  ASSERT_TRUE(test::await([&] { return sshd.connections() >= 1; }));
  const auto session = make_ssh_session(sshd.settings());
  const auto start = std::chrono::steady_clock::now();
  int failures = 0;
  while (std::chrono::steady_clock::now() - start < 8s) {
    expect_kind(error_of([&] { expect_works(*session); }), ErrorKind::kRemote);
    ++failures;
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_GT(failures, 50);  // without a connection
  EXPECT_GE(sshd.count("drop connection"), 2) << sshd.log();
  EXPECT_LE(sshd.count("drop connection"), 5);  // 0, 1, 3, 7 s
  occupant = UniqueFd();
  EXPECT_TRUE(test::await([&] {
    try {
      expect_works(*session);
      return true;
    } catch (const Error&) {
      return false;
    }
  })) << "never connected again";
}

}  // namespace
}  // namespace xffl::remote
