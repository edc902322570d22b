// Hosts that ask for a code or a password.
#include "asking_host.h"
#include "connector.h"
#include "known_hosts.h"
#include "ssh_test.h"
#include "support/fake_clock.h"
#include "wire.h"
#include "xffl/base/file.h"

namespace xffl::remote {
namespace {

using testing::HasSubstr;

class SshKeyboard : public SshTest {
 protected:
  void SetUp() override {
    SshTest::SetUp();
    if (IsSkipped()) return;
    sshd_.emplace();  // provides the keys and a port
    settings_ = sshd_->settings();
    sshd_->stop();
    wants({SSH_AUTH_METHOD_INTERACTIVE});
  }
  void wants(std::vector<int> factors) {
    host_.reset();
    host_.emplace(sshd_->dir() / "host_key", sshd_->port(), std::move(factors));
  }
  std::optional<test::Sshd> sshd_;
  SshSettings settings_;
  std::optional<AskingHost> host_;
};

TEST_F(SshKeyboard, GivesUpOnAHostThatAsksWithoutEnd) {
  host_->endless = true;
  int asked = 0;
  const Error error = error_of([&] {
    log_in(settings_, [&](const std::string&, bool) { return std::to_string(++asked); });
  });
  EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("without accepting the log-in"));
  EXPECT_LT(asked, 100);
}

TEST_F(SshKeyboard, OnlyAUserAnswersThePrompts) {
  const Error error = error_of([&] { make_ssh_session(settings_)->stat(RemotePath("/")); });
  EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("xffl login test"));

  std::vector<std::string> prompts;
  std::vector<bool> echoes;
  const auto session = log_in(settings_, [&](const std::string& prompt, bool echo) {
    prompts.push_back(prompt);
    echoes.push_back(echo);
    return std::string(echo ? "ann" : "123456");
  });
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_THAT(prompts[0], HasSubstr("your phone\nCode: "));
  EXPECT_THAT(prompts[0], testing::Not(HasSubstr("\x1b")));
  EXPECT_EQ(echoes, (std::vector<bool>{false, true}));
}

// The host answers only after the approval on the phone.
TEST_F(SshKeyboard, WaitsForAnApprovalOnAPhone) {
  settings_.timeouts.log_in = std::chrono::seconds(1);
  for (const bool by_password : {false, true}) {
    wants(by_password ? std::vector<int>{SSH_AUTH_METHOD_PASSWORD}
                      : std::vector<int>{SSH_AUTH_METHOD_INTERACTIVE});
    host_->approval = std::chrono::milliseconds(1500);
    int questions = 0;
    log_in(settings_, [&](const std::string&, bool) { return ++questions, std::string("123456"); });
    EXPECT_EQ(questions, by_password ? 1 : 2) << "the password, or the code and the name, once";
  }
}

TEST_F(SshKeyboard, AsksForAPassword) {
  for (const bool after_a_key : {false, true}) {
    wants(after_a_key ? std::vector<int>{SSH_AUTH_METHOD_PUBLICKEY, SSH_AUTH_METHOD_PASSWORD}
                      : std::vector<int>{SSH_AUTH_METHOD_PASSWORD});
    const Error error = error_of([&] { make_ssh_session(settings_)->stat(RemotePath("/")); });
    EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("offers password authentication: run 'xffl login test'"));
    EXPECT_EQ(std::string(error.what()).find("renew the key") == std::string::npos, after_a_key)
        << "the host has accepted the key: " << error.what();

    std::vector<std::pair<std::string, bool>> prompts;
    const auto session = log_in(settings_, [&](const std::string& prompt, bool echo) {
      return prompts.emplace_back(prompt, echo), std::string("123456");
    });
    ASSERT_EQ(prompts.size(), 1u);
    EXPECT_THAT(prompts[0].first, testing::EndsWith("'s password: "));
    EXPECT_FALSE(prompts[0].second);
  }
  const Error error = error_of(
      [&] { log_in(settings_, [](const std::string&, bool) { return std::string("no"); }); });
  EXPECT_THAT(error.what(), HasSubstr("password authentication: refused"));
}

TEST_F(SshKeyboard, WithoutAKeyTheMessageNamesTheLogIn) {
  settings_.keys = {sshd_->dir() / "absent"};
  const Error error = error_of([&] { make_ssh_session(settings_)->stat(RemotePath("/")); });
  EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("set ssh.keys, or run 'xffl login test' on a terminal"));
  int questions = 0;
  const Ask ask = [&](const std::string&, bool) { return ++questions, std::string("123456"); };
  // The host accepts the log-in and offers no service.
  error_of([&] { make_ssh_session(settings_, nullptr, ask)->stat(RemotePath("/")); });
  EXPECT_EQ(questions, 2) << "a user of the session's terminal needs no key";
}

TEST_F(SshKeyboard, AUserLogsInBesideAnExpiredCertificate) {
  sshd_->certify("-2h:-1h", test::own_user());
  int questions = 0;
  log_in(settings_, [&](const std::string&, bool) { return ++questions, std::string("123456"); });
  EXPECT_EQ(questions, 2);
}

// The prompts of a jump host reach the user, too, with the host's name.
TEST_F(SshKeyboard, AJumpHostMayAskToo) {
  test::Sshd behind;
  SshSettings settings = behind.settings();
  settings.jump = settings_.hosts;
  settings.known_hosts = behind.dir() / "both";
  write_file_atomic(settings.known_hosts, read_file(settings_.known_hosts, 10'000) +
                                              read_file(behind.known_hosts(), 10'000));
  const Error error = error_of([&] { expect_works(*make_ssh_session(settings)); });
  EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("xffl login test"));

  std::vector<std::string> prompts;
  const Ask ask = [&](const std::string& prompt, bool) {
    return prompts.push_back(prompt), std::string("123456");
  };
  expect_works(*make_ssh_session(settings, nullptr, ask));
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_THAT(prompts[0],
              testing::StartsWith("[127.0.0.1]:" + std::to_string(sshd_->port()) + ": "));
  expect_works(*log_in(settings, ask));
  EXPECT_EQ(prompts.size(), 4u);
  EXPECT_EQ(fetch_host_key(settings, settings.hosts[0], ask).fingerprint,
            trusted_keys(settings, settings.hosts[0])[0].fingerprint);
  EXPECT_EQ(prompts.size(), 6u);
}

// A session with `ask` prompts by itself; a session without one waits for log_in().
TEST_F(SshKeyboard, ASessionPromptsOrWaitsForLogIn) {
  int questions = 0;
  const Ask ask = [&](const std::string&, bool) { return ++questions, std::string("123456"); };
  // The host accepts the log-in and offers no service.
  error_of([&] { make_ssh_session(settings_, nullptr, ask)->stat(RemotePath("/")); });
  EXPECT_EQ(questions, 2);

  const auto waiting = make_ssh_session(settings_);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(error_of([&] { waiting->stat(RemotePath("/")); }).kind(), ErrorKind::kAuth);
  log_in(*waiting, ask);
  EXPECT_EQ(questions, 4);
  log_in(*waiting, ask);
  EXPECT_EQ(questions, 4) << "already connected";
}

// The coordinator has lost its terminal, and `xffl login` brings the answers.
TEST_F(SshKeyboard, ALogInAsksItsOwnUser) {
  const auto session =
      make_ssh_session(settings_, nullptr, [](const std::string&, bool) -> std::string {
        throw Error(ErrorKind::kAuth, "the terminal was closed");
      });
  EXPECT_EQ(error_of([&] { session->stat(RemotePath("/")); }).kind(), ErrorKind::kAuth);
  int questions = 0;
  log_in(*session, [&](const std::string&, bool) { return ++questions, std::string("123456"); });
  EXPECT_EQ(questions, 2);
}

TEST_F(SshKeyboard, StopsPromptingAfterTwoRefusals) {
  int questions = 0;
  test::FakeClock clock;
  const auto session =
      make_ssh_session(settings_, std::make_shared<ConnectionLimits>(clock),
                       [&](const std::string&, bool) { return ++questions, std::string("no"); });
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(error_of([&] { session->stat(RemotePath("/")); }).kind(), ErrorKind::kAuth);
    clock.advance(std::chrono::minutes(5));
  }
  EXPECT_EQ(questions, 4) << "two questions, twice";
}

// The user is away: the second of two login nodes would only ask again.
TEST_F(SshKeyboard, AQuestionWithoutAnAnswerIsAskedByOneNode) {
  SshSettings settings = settings_;
  settings.hosts.push_back(settings_.hosts[0]);
  settings.hosts[1].name = "localhost";
  const std::string known = read_file(settings_.known_hosts, 10'000);
  std::string other = known;
  other.replace(other.find("127.0.0.1"), 9, "localhost");
  write_file_atomic(settings_.known_hosts, known + other);
  int questions = 0;
  test::FakeClock clock;
  const Ask ask = [&](const std::string&, bool) -> std::string {
    ++questions;
    throw Error(ErrorKind::kAuth, "nobody is there");
  };
  const auto session = make_ssh_session(settings, std::make_shared<ConnectionLimits>(clock), ask);
  for (const int asked : {1, 1, 2, 2}) {
    const Error error = error_of([&] { session->stat(RemotePath("/")); });
    EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("nobody is there"));
    EXPECT_EQ(questions, asked);
    clock.advance(std::chrono::seconds(150));
  }
}

// One node refuses the key for a moment and offers a password; the user is away.
TEST_F(SshKeyboard, AQuestionWithoutAnAnswerLeavesTheOtherNodes) {
  wants({SSH_AUTH_METHOD_PASSWORD});
  test::Sshd other;
  SshSettings settings = other.settings();
  settings.hosts.insert(settings.hosts.begin(), settings_.hosts[0]);
  settings.known_hosts = other.dir() / "both";
  write_file_atomic(settings.known_hosts, read_file(settings_.known_hosts, 10'000) +
                                              read_file(other.known_hosts(), 10'000));
  int questions = 0;
  const Ask ask = [&](const std::string&, bool) -> std::string {
    ++questions;
    throw Error(ErrorKind::kAuth, "nobody is there");
  };
  expect_works(*make_ssh_session(settings, nullptr, ask));
  EXPECT_EQ(questions, 1);
}

TEST_F(SshKeyboard, AWrongAnswerIsRefused) {
  const Error error = error_of(
      [&] { log_in(settings_, [](const std::string&, bool) { return std::string("no"); }); });
  EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
}

// The host goes away before it has the answers.
TEST_F(SshKeyboard, ALinkLostDuringTheLogInIsNoRefusal) {
  const Ask ask = [&](const std::string&, bool) {
    host_.reset();
    return std::string("123456");
  };
  test::FakeClock clock;
  const auto limits = std::make_shared<ConnectionLimits>(clock);
  Connector connector(settings_, limits);
  const Error error = error_of([&] { connector.get(&ask); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("the link was lost while logging in"));
  EXPECT_GT(limits->wait(host_label(settings_.hosts[0])), std::chrono::nanoseconds(0))
      << "the next attempt waits";
}

}  // namespace
}  // namespace xffl::remote
