#include "channel.h"

#include <algorithm>

#include "known_hosts.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

using namespace std::chrono_literals;

constexpr int kMaxRefusals = 6;
// libssh's own window; a larger `count` for a read enlarges it (0.10; not in 0.11).
constexpr size_t kLibsshWindow = 1'280'000;

}  // namespace

void Channel::Free::operator()(ssh_channel channel) const {
  connection->with([&](ssh_session) {
    ssh_channel_free(channel);
    if (session) connection->channel_closed();
  });
}

Channel::~Channel() { handle_.reset(); }

void Channel::wait_for_slot(Connection& link, Deadline deadline, const std::stop_token& stop) {
  bool taken = false;
  link.with([&](ssh_session) { taken = link.take_channel(); });
  if (taken) return;
  if (link.on_full) link.on_full();
  link.wait([&](ssh_session) { return link.take_channel(); }, deadline, stop,
            "waiting for a free channel");
}

Channel Channel::open(std::shared_ptr<Connection> connection, Deadline deadline,
                      const std::stop_token& stop) {
  Connection& link = *connection;
  for (int refusals = 0;; ++refusals) {
    wait_for_slot(link, deadline, stop);
    Handle handle(nullptr, Free{&link, true});
    link.with([&](ssh_session session) {
      handle.reset(ssh_channel_new(session));
      if (!handle) link.channel_closed();
    });
    bool refused = false;
    std::string problem;
    link.wait(
        [&](ssh_session session) {
          const int result = ssh_channel_open_session(handle.get());
          refused = result != SSH_OK && result != SSH_AGAIN;
          if (refused) problem = log::printable(ssh_get_error(session), 300);
          return result != SSH_AGAIN;
        },
        deadline, stop, "opening a channel");
    if (!refused) return Channel(std::move(connection), std::move(handle));
    link.with([&](ssh_session) { link.lower_channel_limit(); });
    handle.reset();
    if (refusals >= kMaxRefusals)
      throw Error(ErrorKind::kRemote, link.name() + " opens no channel: " + problem);
    // MaxSessions is lower than assumed, or the server has not freed the last channel yet.
    if (link.on_full) link.on_full();
    link.pause(50ms * (1 << refusals), stop);
  }
}

void Channel::request(const std::string& activity, Deadline deadline, const std::stop_token& stop,
                      const std::function<int(ssh_channel)>& step) {
  int result = SSH_AGAIN;
  connection_->wait(
      [&](ssh_session) {
        result = step(handle_.get());
        return result != SSH_AGAIN;
      },
      deadline, stop, activity);
  if (result == SSH_OK) return;
  if (connection_->alive())
    throw Error(ErrorKind::kUnsupported, connection_->name() + " refused while " + activity);
  fail(activity);
}

Channel Channel::exec(std::shared_ptr<Connection> connection, const std::string& command,
                      Deadline deadline, const std::stop_token& stop) {
  Channel channel = open(std::move(connection), deadline, stop);
  channel.request("starting a command", deadline, stop, [&](ssh_channel handle) {
    return ssh_channel_request_exec(handle, command.c_str());
  });
  return channel;
}

Channel Channel::sftp(std::shared_ptr<Connection> connection, Deadline deadline,
                      const std::stop_token& stop) {
  Channel channel = open(std::move(connection), deadline, stop);
  channel.request("starting SFTP", deadline, stop,
                  [&](ssh_channel handle) { return ssh_channel_request_sftp(handle); });
  return channel;
}

Channel Channel::tunnel(std::shared_ptr<Connection> connection, const SshHost& host,
                        Deadline deadline) {
  Handle handle(nullptr, Free{connection.get(), false});
  connection->with([&](ssh_session session) { handle.reset(ssh_channel_new(session)); });
  Channel channel(std::move(connection), std::move(handle));
  channel.request("opening a tunnel to " + host_label(host), deadline, {}, [&](ssh_channel open) {
    return ssh_channel_open_forward(open, host.name.c_str(), host.port, "127.0.0.1", 0);
  });
  return channel;
}

void Channel::fail(const std::string& activity) const {
  const std::string problem =
      log::printable(ssh_get_error(ssh_channel_get_session(handle_.get())), 300);
  throw Error(ErrorKind::kRemote,
              "failed at " + connection_->name() + " while " + activity + ": " + problem);
}

size_t Channel::try_read(std::span<std::byte> out, Stream stream, size_t window) {
  // Each window adjustment costs a packet, so the window is opened again when half is used.
  const bool open_window = window > kLibsshWindow && granted_ < window / 2;
  const auto count = static_cast<uint32_t>(open_window ? std::min(out.size(), window)
                                                       : std::min<size_t>(out.size(), 1u << 20));
  int n =
      open_window
          ? ssh_channel_read_timeout(handle_.get(), out.data(), count, stream == Stream::kErr, 0)
          : ssh_channel_read_nonblocking(handle_.get(), out.data(), count, stream == Stream::kErr);
  if (n == SSH_AGAIN || n == SSH_EOF) n = 0;
  if (n < 0) {
    if (ssh_channel_is_eof(handle_.get()) || ssh_channel_is_closed(handle_.get())) return 0;
    fail("reading");
  }
  if (open_window) granted_ = count;
  granted_ -= std::min(granted_, static_cast<size_t>(n));
  return static_cast<size_t>(n);
}

bool Channel::at_end() const {
  if (!ssh_channel_is_eof(handle_.get()) && !ssh_channel_is_closed(handle_.get())) return false;
  return ssh_channel_poll(handle_.get(), 0) <= 0 && ssh_channel_poll(handle_.get(), 1) <= 0;
}

bool Channel::takes_input() const { return !closed_ && ssh_channel_is_open(handle_.get()) != 0; }

size_t Channel::try_write(std::span<const std::byte> bytes) {
  if (ssh_get_poll_flags(ssh_channel_get_session(handle_.get())) & SSH_WRITE_PENDING) return 0;
  const int n = ssh_channel_write(handle_.get(), bytes.data(), static_cast<uint32_t>(bytes.size()));
  if (n == SSH_AGAIN) return 0;
  if (n < 0 && !ssh_is_connected(ssh_channel_get_session(handle_.get()))) fail("writing");
  closed_ = closed_ || n < 0;
  return n < 0 ? 0 : static_cast<size_t>(n);
}

void Channel::send_eof() {
  connection_->with([&](ssh_session) { ssh_channel_send_eof(handle_.get()); });
}

size_t Channel::read(std::span<std::byte> out, Deadline deadline, const std::stop_token& stop,
                     const std::string& activity, size_t window) {
  size_t n = 0;
  connection_->wait(
      [&](ssh_session) {
        std::byte unread[4096];  // unread stderr would fill the window
        while (try_read(unread, Stream::kErr, 0) > 0) continue;
        n = try_read(out, Stream::kOut, window);
        return n > 0 || at_end();
      },
      deadline, stop, activity);
  return n;
}

void Channel::write(std::span<const std::byte> bytes, Deadline deadline,
                    const std::stop_token& stop, const std::string& activity) {
  connection_->wait(
      [&](ssh_session) {
        while (!bytes.empty()) {
          const size_t n = try_write(bytes.first(std::min<size_t>(bytes.size(), 256u << 10)));
          if (!takes_input()) fail(activity);
          if (n == 0) return false;
          bytes = bytes.subspan(n);
        }
        return true;
      },
      deadline, stop, activity);
}

}  // namespace xffl::remote
