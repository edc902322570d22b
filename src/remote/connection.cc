#include "connection.h"

#include <libssh/server.h>  // ssh_send_keepalive
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "known_hosts.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

using SteadyClock = std::chrono::steady_clock;

// After this many bytes the pump releases the mutex for other threads.
constexpr uint64_t kTurnBytes = 256u << 10;

using namespace std::chrono_literals;

constexpr int kMaxRefusedChannels = 6;
// A channel drops at most this many bytes of stderr. libssh opens the window at each read and does
// not count unread bytes, so unread stderr would grow in memory.
constexpr size_t kMaxDropped = 16u << 20;
// libssh's own window. In libssh 0.10, not in 0.11, a read with a larger `count` enlarges the
// window.
constexpr size_t kLibsshWindow = 1'280'000;

}  // namespace

Connection::Connection(SessionPtr session, std::string name, SshTimeouts timeouts,
                       std::shared_ptr<void> below)
    : name_(std::move(name)),
      timeouts_(timeouts),
      below_(std::move(below)),
      session_(std::move(session)),
      heard_(SteadyClock::now()),
      asked_(heard_),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw system_error("make an event for the connection to " + name_, errno);
  ssh_set_counters(session_.get(), &traffic_, nullptr);
  event_ = ssh_event_new();
  if (event_ == nullptr || ssh_event_add_session(event_, session_.get()) != SSH_OK)
    throw Error(ErrorKind::kInternal, "libssh cannot wait for " + name_);
  thread_ = std::jthread([this](const std::stop_token& stop) { pump(stop); });
}

Connection::~Connection() {
  thread_.request_stop();
  wake_pump();
  thread_.join();
  ssh_event_remove_session(event_, session_.get());
  ssh_event_free(event_);
}

bool Connection::alive() const {
  const std::lock_guard lock(mutex_);
  return dead_.empty();
}

void Connection::wait(const std::function<bool(ssh_session)>& step, Deadline deadline,
                      const std::stop_token& stop, const std::string& activity) {
  if (!wait_until(step, deadline, stop, activity))
    throw Error(ErrorKind::kRemote, name_ + " did not answer in time while " + activity);
}

bool Connection::wait_until(const std::function<bool(ssh_session)>& step, Deadline deadline,
                            const std::stop_token& stop, const std::string& activity) {
  // A peer that floods the channel keeps every step successful: the time counts before the step.
  if (SteadyClock::now() >= deadline) return false;
  const std::stop_token scope = StopScope::current();
  // Constructed before the lock: the destructor waits for a running callback, which needs the
  // mutex.
  const std::stop_callback wake(scope, [this] {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stop.stop_requested() || scope.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped while " + activity + " at " + name_);
    if (!dead_.empty())
      throw Error(ErrorKind::kRemote,
                  "the link to " + name_ + " was lost while " + activity + ": " + dead_);
    // wait() reads the generation before the step, because the step itself may cause the awaited
    // event.
    const uint64_t seen = generation_;
    if (run_step(step)) return true;
    if (SteadyClock::now() >= deadline) return false;
    changed_.wait_until(lock, stop, deadline, [&] {
      return generation_ != seen || !dead_.empty() || scope.stop_requested();
    });
  }
}

void Connection::with(const std::function<void(ssh_session)>& step) {
  const std::lock_guard lock(mutex_);
  run_step([&](ssh_session session) {
    step(session);
    return true;
  });
}

// A step that throws has read packets, too.
bool Connection::run_step(const std::function<bool(ssh_session)>& step) {
  struct AfterStep {
    Connection& connection;
    ~AfterStep() { connection.after_step(); }
  };
  const AfterStep after{*this};
  return step(session_.get());
}

void Connection::pause(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, stop, time, [&] { return !dead_.empty(); });
}

void Connection::channel_closed() {
  --channels_;
  ++generation_;
  changed_.notify_all();
}

// A step may have read packets of other channels, left unsent bytes, or found the connection
// closed.
void Connection::after_step() {
  if (traffic_.in_bytes != heard_bytes_) {
    heard_bytes_ = traffic_.in_bytes;
    heard_ = SteadyClock::now();
    ++generation_;
    changed_.notify_all();
  }
  const bool writes = ssh_get_poll_flags(session_.get()) & SSH_WRITE_PENDING;
  if (std::exchange(writes_, writes) && !writes) {  // libssh wrote to the socket in the step
    ++generation_;
    changed_.notify_all();
  }
  if (!ssh_is_connected(session_.get()) || (ssh_get_status(session_.get()) & SSH_CLOSED_ERROR))
    die(libssh_error(session_.get()));
  else if (!pump_writes_ && writes)
    wake_pump();
}

void Connection::die(const std::string& reason) {
  if (!dead_.empty()) return;
  dead_ = reason.empty() ? "the connection was closed" : reason;
  ++generation_;
  changed_.notify_all();
}

void Connection::wake_pump() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
}

void Connection::pump(const std::stop_token& stop) {
  const auto pause = std::min(timeouts_.keepalive, timeouts_.silence) / 4;
  while (!stop.stop_requested()) {
    pollfd waits[2] = {{-1, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (!dead_.empty()) return;
      waits[0].fd = ssh_get_fd(session_.get());
      pump_writes_ = ssh_get_poll_flags(session_.get()) & SSH_WRITE_PENDING;
      if (pump_writes_) waits[0].events |= POLLOUT;
    }
    ::poll(waits, 2, static_cast<int>(std::clamp<long>(pause.count(), 1, 60'000)));
    if (waits[1].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof count);
    }
    const std::lock_guard lock(mutex_);
    if (waits[0].revents != 0) exchange();
    watch_silence();
  }
}

void Connection::exchange() {
  const uint64_t start = traffic_.in_bytes;
  for (;;) {
    const uint64_t before = traffic_.in_bytes;
    if (ssh_event_dopoll(event_, 0) == SSH_ERROR) break;
    if (traffic_.in_bytes == before || traffic_.in_bytes - start >= kTurnBytes) break;
  }
  ++generation_;  // space to write is an event, too
  changed_.notify_all();
  after_step();
}

void Connection::watch_silence() {
  if (!dead_.empty()) return;
  const auto now = SteadyClock::now();
  if (now - heard_ >= timeouts_.silence) {
    die("no data received for " +
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - heard_).count()) +
        " s");
    return;
  }
  if (now - std::max(heard_, asked_) < timeouts_.keepalive) return;
  asked_ = now;
  // The first call reads the answer to the last keepalive, if any; the second call sends a new
  // keepalive.
  ssh_send_keepalive(session_.get());
  ssh_send_keepalive(session_.get());
  after_step();
}

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
  const std::string activity = "waiting for a free channel";
  if (!link.wait_until([&](ssh_session) { return link.take_channel(); }, deadline, stop, activity))
    throw NoFreeChannel(ErrorKind::kRemote,
                        link.name() + " did not answer in time while " + activity);
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
          if (refused) problem = libssh_error(session);
          return result != SSH_AGAIN;
        },
        deadline, stop, "opening a channel");
    if (!refused) return Channel(std::move(connection), std::move(handle));
    link.with([&](ssh_session) { link.lower_channel_limit(); });
    handle.reset();
    if (refusals >= kMaxRefusedChannels)
      throw Error(ErrorKind::kRemote, link.name() + " opens no channel: " + problem);
    // The server's MaxSessions is lower than max_channels_, or the server has not freed the last
    // channel yet.
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
  try {
    channel.request("opening a tunnel to " + host_label(host), deadline, {}, [&](ssh_channel open) {
      return ssh_channel_open_forward(open, host.name.c_str(), host.port, "127.0.0.1", 0);
    });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    throw Error(ErrorKind::kRemote, error.what());  // also a host that is down: others may answer
  }
  return channel;
}

void Channel::fail(const std::string& activity) const {
  const std::string problem = libssh_error(ssh_channel_get_session(handle_.get()));
  throw Error(ErrorKind::kRemote,
              "failed at " + connection_->name() + " while " + activity + ": " + problem);
}

size_t Channel::try_read(std::span<std::byte> out, Stream stream, size_t window) {
  // Each window adjustment costs a packet, so try_read() opens the window again when the server has
  // used half.
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
        std::byte unread[16384];
        while (const size_t some = try_read(unread, Stream::kErr, 0))
          if ((dropped_ += some) > kMaxDropped)
            throw Error(ErrorKind::kRemote,
                        connection_->name() + " floods stderr while " + activity);
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
