// A host that asks a person: a server of libssh, since sshd needs PAM for it.
#include <libssh/libssh.h>
#include <libssh/server.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "ssh_test.h"
#include "wire.h"
#include "xffl/base/file.h"

namespace xffl::remote {
namespace {

using testing::HasSubstr;

// Asks for a code, and lets in who says 123456.
class AskingHost {
 public:
  explicit AskingHost(const std::filesystem::path& host_key, int port) : bind_(ssh_bind_new()) {
    const bool no = false;
    ssh_bind_options_set(bind_, SSH_BIND_OPTIONS_PROCESS_CONFIG, &no);
    ssh_bind_options_set(bind_, SSH_BIND_OPTIONS_BINDADDR, "127.0.0.1");
    ssh_bind_options_set(bind_, SSH_BIND_OPTIONS_BINDPORT, &port);
    ssh_bind_options_set(bind_, SSH_BIND_OPTIONS_HOSTKEY, host_key.c_str());
    if (ssh_bind_listen(bind_) != SSH_OK) throw std::runtime_error(ssh_get_error(bind_));
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  ~AskingHost() {
    thread_.request_stop();
    thread_.join();
    ssh_bind_free(bind_);
  }
  int log_ins = 0;                    // read when nobody is served
  std::atomic<bool> endless = false;  // asks again, whatever it is told

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd wait{ssh_bind_get_fd(bind_), POLLIN, 0};
      if (::poll(&wait, 1, 50) <= 0) continue;
      ssh_session session = ssh_new();
      if (ssh_bind_accept(bind_, session) == SSH_OK && ssh_handle_key_exchange(session) == SSH_OK) {
        ssh_set_blocking(session, 0);
        while (!stop.stop_requested() && ssh_is_connected(session)) {
          ssh_message message = ssh_message_get(session);
          if (message == nullptr) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            continue;
          }
          answer(session, message);
          ssh_message_free(message);
        }
      }
      ssh_disconnect(session);
      ssh_free(session);
    }
  }
  void answer(ssh_session session, ssh_message message) {
    const int type = ssh_message_type(message), subtype = ssh_message_subtype(message);
    if (type == SSH_REQUEST_SERVICE) {
      ssh_message_service_reply_success(message);
    } else if (type == SSH_REQUEST_AUTH && subtype == SSH_AUTH_METHOD_INTERACTIVE) {
      if (!ssh_message_auth_kbdint_is_response(message) || endless) {
        const char* prompts[] = {"Code: ", "Name: "};
        char echo[] = {0, 1};
        ssh_message_auth_interactive_request(message, "two factors", "Look at\x1b[2J your phone", 2,
                                             prompts, echo);
        return;
      }
      const char* code = ssh_userauth_kbdint_getanswer(session, 0);
      if (code != nullptr && std::string(code) == "123456") {
        ++log_ins;
        ssh_message_auth_reply_success(message, 0);
        return;
      }
      ssh_message_auth_set_methods(message, SSH_AUTH_METHOD_INTERACTIVE);
      ssh_message_reply_default(message);
    } else {
      if (type == SSH_REQUEST_AUTH)
        ssh_message_auth_set_methods(message, SSH_AUTH_METHOD_INTERACTIVE);
      ssh_message_reply_default(message);
    }
  }

  ssh_bind bind_;
  std::jthread thread_;
};

class SshKeyboard : public SshTest {
 protected:
  void SetUp() override {
    SshTest::SetUp();
    if (IsSkipped()) return;
    sshd_.emplace();  // for its keys and its port
    settings_ = sshd_->settings();
    sshd_->stop();
    host_.emplace(sshd_->dir() / "host_key", sshd_->port());
  }
  std::optional<test::Sshd> sshd_;
  SshSettings settings_;
  std::optional<AskingHost> host_;
};

TEST_F(SshKeyboard, AHostThatAsksWithoutEndIsLeft) {
  host_->endless = true;
  int asked = 0;
  const Error error = error_of([&] {
    log_in(settings_, [&](const std::string&, bool) { return std::to_string(++asked); });
  });
  EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("let nobody in"));
  EXPECT_LT(asked, 100);
}

TEST_F(SshKeyboard, APersonAnswersAndNobodyElse) {
  const Error error = error_of([&] { make_ssh_session(settings_)->stat(RemotePath("/")); });
  EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("xffl login test"));

  std::vector<std::string> prompts;
  std::vector<bool> echoes;
  const auto session = log_in(settings_, [&](const std::string& prompt, bool echo) {
    prompts.push_back(prompt);
    echoes.push_back(echo);
    return std::string("123456");
  });
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_THAT(prompts[0], HasSubstr("your phone\nCode: "));
  EXPECT_THAT(prompts[0], testing::Not(HasSubstr("\x1b")));
  EXPECT_EQ(echoes, (std::vector<bool>{false, true}));
}

// A session that has somebody to ask does so by itself; one that has nobody waits for log_in().
TEST_F(SshKeyboard, ASessionAsksOrIsLoggedInLater) {
  int questions = 0;
  const Ask ask = [&](const std::string&, bool) { return ++questions, std::string("123456"); };
  // The host lets people in and offers nothing.
  error_of([&] { make_ssh_session(settings_, nullptr, ask)->stat(RemotePath("/")); });
  EXPECT_EQ(questions, 2);

  const auto waiting = make_ssh_session(settings_);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(error_of([&] { waiting->stat(RemotePath("/")); }).kind(), ErrorKind::kAuth);
  log_in(*waiting, ask);
  EXPECT_EQ(questions, 4);
  log_in(*waiting, ask);
  EXPECT_EQ(questions, 4) << "it is connected already";
}

TEST_F(SshKeyboard, APersonWhoIsRefusedTwiceIsLeftAlone) {
  int questions = 0;
  const auto session = make_ssh_session(
      settings_, nullptr, [&](const std::string&, bool) { return ++questions, std::string("no"); });
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(error_of([&] { session->stat(RemotePath("/")); }).kind(), ErrorKind::kAuth);
  EXPECT_EQ(questions, 4) << "two questions, twice";
}

TEST_F(SshKeyboard, AWrongAnswerIsARefusal) {
  const Error error = error_of(
      [&] { log_in(settings_, [](const std::string&, bool) { return std::string("no"); }); });
  EXPECT_EQ(error.kind(), ErrorKind::kAuth) << error.what();
}

}  // namespace
}  // namespace xffl::remote
