// How long to wait: dense where something is about to happen, sparse where nothing is.
#include <algorithm>

#include "xffl/base/sha256.h"
#include "xffl/facility/machine.h"

namespace xffl::facility {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

std::optional<Nanoseconds> deadline_left(const Rules& rules, const Moment& moment) {
  if (rules.waits_for_ever || rules.deadline.count() == 0 || !moment.since_first_submission)
    return std::nullopt;
  return Nanoseconds(rules.deadline) - *moment.since_first_submission;
}

// A look for the report is one stat at the facility, and costs its scheduler nothing. What is found
// late by a tenth of the time that it took is found soon enough; near the end that the previous
// round lets expect, a tenth of what is left.
Nanoseconds look_interval(const Rules& rules, Nanoseconds watched,
                          std::optional<Nanoseconds> running) {
  const Nanoseconds most = std::min<Nanoseconds>(rules.poll_interval, seconds(30));
  Nanoseconds interval = watched / 10;
  if (running && rules.expected_training) {
    const Nanoseconds left = Nanoseconds(*rules.expected_training) - *running;
    const Nanoseconds distance = left < Nanoseconds(0) ? -left : left;
    interval = std::min(interval, std::max<Nanoseconds>(distance / 4, seconds(1)));
  }
  return std::clamp<Nanoseconds>(interval, std::min<Nanoseconds>(most, milliseconds(200)), most);
}

// Soon after the submission a wrong script shows itself; later one question per poll interval is
// what sites ask for; a job that has queued for an hour can be asked for five times less often.
Nanoseconds question_interval(const Rules& rules, Nanoseconds watched, bool pending) {
  const Nanoseconds usual = rules.poll_interval;
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
