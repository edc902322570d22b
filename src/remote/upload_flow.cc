#include "upload_flow.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

#include "xffl/base/error.h"

namespace xffl::remote {
namespace {

using namespace std::chrono_literals;

constexpr auto kMeasureInterval = 100ms;
constexpr auto kPollInterval = 20ms;
constexpr double kQueueSeconds = 4;
constexpr uint64_t kMinQueueBytes = 1u << 20;
constexpr uint64_t kLibsshPendingBytes = 256u << 10;  // of one write

uint64_t queued_bytes(Connection& connection) {
  int in_socket = 0;
  bool pending = false;
  connection.with([&](ssh_session session) {
    if (::ioctl(ssh_get_fd(session), SIOCOUTQ, &in_socket) != 0) in_socket = 0;
    pending = ssh_get_poll_flags(session) & SSH_WRITE_PENDING;
  });
  return static_cast<uint64_t>(std::max(in_socket, 0)) + (pending ? kLibsshPendingBytes : 0);
}

}  // namespace

UploadFlow::UploadFlow(std::vector<std::shared_ptr<Connection>> connections, std::string activity)
    : connections_(std::move(connections)),
      activity_(std::move(activity)),
      patience_(connections_.at(0)->timeouts().operation),
      measured_(std::chrono::steady_clock::now()),
      progressed_(measured_) {}

void UploadFlow::accepted(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  accepted_ += bytes;
}

bool UploadFlow::has_room(Time now) {
  const std::lock_guard lock(mutex_);
  if (now - measured_ >= kMeasureInterval) {
    const double seconds =
        std::chrono::duration<double>(now - std::exchange(measured_, now)).count();
    queued_ = 0;
    for (const auto& connection : connections_) queued_ += queued_bytes(*connection);
    const uint64_t delivered = accepted_ - std::min(accepted_, queued_);
    const uint64_t gained = delivered - std::min(delivered, delivered_);
    if (gained > 0) progressed_ = now;
    delivered_ = std::max(delivered_, delivered);
    // Follows a rising rate at once and a falling rate slowly.
    const double rate = static_cast<double>(gained) / seconds;
    bytes_per_second_ = std::max(rate, 0.8 * bytes_per_second_ + 0.2 * rate);
  }
  if (now - progressed_ >= patience_)
    throw Error(ErrorKind::kRemote, "no byte moved for " +
                                        std::to_string(patience_.count() / 1000) + " s: cannot " +
                                        activity_ + " at " + connections_[0]->name());
  return static_cast<double>(queued_) <
         std::max<double>(kMinQueueBytes, kQueueSeconds * bytes_per_second_);
}

void UploadFlow::check() { has_room(std::chrono::steady_clock::now()); }

void UploadFlow::wait_for_room(const std::stop_token& stop) {
  while (!has_room(std::chrono::steady_clock::now())) {
    const auto lost = std::find_if(connections_.begin(), connections_.end(),
                                   [](const auto& each) { return !each->alive(); });
    const auto& waits_on = lost == connections_.end() ? connections_[0] : *lost;
    waits_on->wait_until([](ssh_session) { return false; }, deadline_in(kPollInterval), stop,
                         "waiting to " + activity_);
  }
}

}  // namespace xffl::remote
