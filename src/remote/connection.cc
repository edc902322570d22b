#include "connection.h"

#include <libssh/server.h>  // ssh_send_keepalive
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Bytes to read before the mutex is released for other threads.
constexpr uint64_t kTurnBytes = 256u << 10;

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
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!dead_.empty())
      throw Error(ErrorKind::kRemote,
                  "the link to " + name_ + " was lost while " + activity + ": " + dead_);
    // Read before the step, because the step itself may cause the event that it waits for.
    const uint64_t seen = generation_;
    const bool done = step(session_.get());
    after_step();
    if (done) return;
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped while " + activity + " at " + name_);
    if (SteadyClock::now() >= deadline)
      throw Error(ErrorKind::kRemote, name_ + " did not answer in time while " + activity);
    changed_.wait_until(lock, stop, deadline,
                        [&] { return generation_ != seen || !dead_.empty(); });
  }
}

void Connection::with(const std::function<void(ssh_session)>& step) {
  const std::lock_guard lock(mutex_);
  step(session_.get());
  after_step();
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
    die(log::printable(ssh_get_error(session_.get()), 300));
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
  // The first call reads the answer to the last keepalive, if any; the second sends a new one.
  ssh_send_keepalive(session_.get());
  ssh_send_keepalive(session_.get());
  after_step();
}

}  // namespace xffl::remote
