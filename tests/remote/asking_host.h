// A host that asks its users: a libssh server, since sshd needs PAM or the account's password.
#pragma once

#include <arpa/inet.h>
#include <libssh/libssh.h>
#include <libssh/server.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "xffl/base/file.h"

namespace xffl::remote {

// Wants the methods `factors` in their order, and accepts any key, and 123456 as a code and as a
// password; as a jump host it then forwards to a local port. Serves one connection at a time.
class AskingHost {
 public:
  explicit AskingHost(const std::filesystem::path& host_key, int port,
                      std::vector<int> factors = {SSH_AUTH_METHOD_INTERACTIVE})
      : bind_(ssh_bind_new()), factors_(std::move(factors)) {
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
  int log_ins = 0;                    // read only without a connection
  std::atomic<bool> endless = false;  // rejects every answer and asks again
  // The time that the user takes for an approval on a phone.
  std::atomic<std::chrono::milliseconds> approval{};

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd wait{ssh_bind_get_fd(bind_), POLLIN, 0};
      if (::poll(&wait, 1, 50) <= 0) continue;
      ssh_session session = ssh_new();
      if (ssh_bind_accept(bind_, session) == SSH_OK && ssh_handle_key_exchange(session) == SSH_OK) {
        ssh_set_blocking(session, 0);
        num_accepted_ = 0;
        while (!stop.stop_requested() && ssh_is_connected(session)) {
          ssh_message message = ssh_message_get(session);
          if (message == nullptr) {
            if (left()) break;
            if (!relay()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
            continue;
          }
          answer(session, message);
          ssh_message_free(message);
        }
      }
      channel_ = nullptr;  // the session owns the channel
      beyond_ = UniqueFd();
      ssh_disconnect(session);
      ssh_free(session);
    }
  }
  void answer(ssh_session session, ssh_message message) {
    const int type = ssh_message_type(message), subtype = ssh_message_subtype(message);
    if (type == SSH_REQUEST_SERVICE) {
      ssh_message_service_reply_success(message);
    } else if (type == SSH_REQUEST_AUTH) {
      authenticate(session, message, subtype);
    } else if (type == SSH_REQUEST_CHANNEL_OPEN && subtype == SSH_CHANNEL_DIRECT_TCPIP) {
      lead_on(message);
    } else {
      ssh_message_reply_default(message);
    }
  }

  void authenticate(ssh_session session, ssh_message message, int method) {
    const int wanted = factors_.at(num_accepted_);
    ssh_message_auth_set_methods(message, wanted);
    if (method == wanted && method == SSH_AUTH_METHOD_INTERACTIVE &&
        (!ssh_message_auth_kbdint_is_response(message) || endless)) {
      const char* prompts[] = {"Code: ", "Name: "};
      char echo[] = {0, 1};
      ssh_message_auth_interactive_request(message, "two factors", "Look at\x1b[2J your phone", 2,
                                           prompts, echo);
      return;
    }
    if (method != wanted || !accepts(session, message, method)) {
      ssh_message_reply_default(message);
      return;
    }
    std::this_thread::sleep_for(approval.load());
    const bool partial = ++num_accepted_ < factors_.size();
    if (partial)
      ssh_message_auth_set_methods(message, factors_[num_accepted_]);
    else
      ++log_ins;
    ssh_message_auth_reply_success(message, partial ? 1 : 0);
  }

// libssh's messages are the interface without callbacks; some of their accessors are deprecated.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  static bool accepts(ssh_session session, ssh_message message, int method) {
    if (method == SSH_AUTH_METHOD_PUBLICKEY)
      return ssh_message_auth_publickey_state(message) == SSH_PUBLICKEY_STATE_VALID;
    const char* secret = method == SSH_AUTH_METHOD_PASSWORD
                             ? ssh_message_auth_password(message)
                             : ssh_userauth_kbdint_getanswer(session, 0);
    return secret != nullptr && std::string(secret) == "123456";
  }
#pragma GCC diagnostic pop

  void lead_on(ssh_message message) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port =
        htons(static_cast<uint16_t>(ssh_message_channel_request_open_destination_port(message)));
    beyond_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(beyond_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
      ssh_message_reply_default(message);
      return;
    }
    channel_ = ssh_message_channel_request_open_reply_accept(message);
  }
  // Closes the forwarding socket.
  bool left() const {
    return channel_ != nullptr && (ssh_channel_is_eof(channel_) || ssh_channel_is_closed(channel_));
  }
  // Copies available bytes in both directions; false when there were none.
  bool relay() {
    if (channel_ == nullptr) return false;
    char bytes[16384];
    const int there = ssh_channel_read_nonblocking(channel_, bytes, sizeof bytes, 0);
    if (there > 0)
      write_all(beyond_.get(), std::as_bytes(std::span(bytes, static_cast<size_t>(there))),
                "relay");
    const ssize_t back = ::recv(beyond_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    for (ssize_t done = 0; done < back;) {
      const int sent =
          ssh_channel_write(channel_, bytes + done, static_cast<uint32_t>(back - done));
      if (sent < 0) break;
      done += sent;
    }
    return there > 0 || back > 0;
  }

  ssh_bind bind_;
  const std::vector<int> factors_;
  size_t num_accepted_ = 0;  // of the factors, in this connection
  std::jthread thread_;
  ssh_channel channel_ = nullptr;
  UniqueFd beyond_;
};

}  // namespace xffl::remote
