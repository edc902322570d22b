// How long to wait: dense where something is about to happen, sparse where nothing is.
#include <algorithm>

#include "xffl/base/sha256.h"
#include "xffl/facility/machine.h"

namespace xffl::facility {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

std::optional<Deadline> deadline(const FacilityPolicy& policy, const Now& now) {
  if (policy.deadline.count() == 0 || !now.since_first_submission) return std::nullopt;
  return Deadline{.left = Nanoseconds(policy.deadline) - *now.since_first_submission,
                  .ends_attempts = policy.on_missing != config::OnMissing::kWait};
}

// A look for the report is one stat at the facility and costs its scheduler nothing. A delay of a
// tenth of the time since the submission is short enough; near the end that the previous round lets
// expect, the delay is a quarter of the time left.
Nanoseconds report_interval(const FacilityPolicy& policy, Nanoseconds watched,
                            std::optional<Nanoseconds> running) {
  const Nanoseconds most = std::min<Nanoseconds>(policy.poll_interval, seconds(30));
  Nanoseconds interval = watched / 10;
  if (running && policy.expected_training) {
    const Nanoseconds left = Nanoseconds(*policy.expected_training) - *running;
    const Nanoseconds distance = left < Nanoseconds(0) ? -left : left;
    interval = std::min(interval, std::max<Nanoseconds>(distance / 4, seconds(1)));
  }
  return std::clamp<Nanoseconds>(interval, std::min<Nanoseconds>(most, milliseconds(200)), most);
}

// A wrong script shows itself soon after the submission; later, sites ask for at most one query per
// poll interval; a job that has queued for an hour is queried five times less often.
Nanoseconds query_interval(const FacilityPolicy& policy, Nanoseconds watched, bool pending) {
  const Nanoseconds usual = policy.poll_interval;
  if (pending && watched > minutes(60)) return 5 * usual;
  return std::clamp<Nanoseconds>(watched / 2, std::min<Nanoseconds>(usual, seconds(2)), usual);
}

Nanoseconds backoff(std::string_view seed, int retry) {
  constexpr Nanoseconds kFirst = seconds(5), kMost = minutes(15);
  Nanoseconds wait = kFirst;
  for (int i = 1; i < retry && wait < kMost; ++i) wait *= 2;
  wait = std::min(wait, kMost);
  const std::string hash = sha256_hex(std::string(seed) + "/" + std::to_string(retry));
  const auto jitter = std::stoul(hash.substr(0, 4), nullptr, 16);  // of 65536
  return wait - wait * static_cast<int64_t>(jitter) / (2 * 65536);
}

}  // namespace xffl::facility
