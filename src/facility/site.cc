#include "site.h"

#include <algorithm>
#include <cstdio>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/scrub.h"
#include "xffl/facility/facility_errors.h"

namespace xffl::facility {

Tail last_bytes(remote::Session& session, const RemotePath& path, uint64_t count) {
  const auto info = session.stat(path);
  if (!info) return {};
  std::vector<std::byte> tail(std::min<uint64_t>(info->size_bytes, count));
  tail.resize(session.read(path, info->size_bytes - tail.size(), tail));
  return {{reinterpret_cast<const char*>(tail.data()), tail.size()}, info->size_bytes <= count};
}

std::string last_words(remote::Session& session, const RemotePath& path) {
  constexpr size_t kShown = 600;
  const Tail tail = last_bytes(session, path, kShown + kLongestSecret);
  return log::printable(scrubbed_end(tail.text, kShown, tail.is_whole));
}

Site::Site(Context& of_the_run, const plan::RoundPlan& of_the_round,
           const plan::FacilityPlan& of_the_facility)
    : context(of_the_run),
      plan(of_the_round),
      facility(of_the_facility),
      settings(of_the_run.experiment.facility(of_the_facility.facility)),
      session(context.services.connect(settings)),
      bulk(context.services.connect_transfer(settings)),
      scheduler(context.services.scheduler(settings, session)) {}

job::JobSpec Site::spec(int attempt) const {
  return plan::job_spec(context.experiment, context.identity, plan, facility, attempt);
}

void Site::sleep(Nanoseconds duration, std::stop_token stop) {
  if (!context.services.clock.sleep(duration, stop))
    throw Error(ErrorKind::kCancelled, "stopped on request");
}

transfer::OnProgress Site::shown(const std::string& doing, const RemotePath& folder) {
  static constexpr Nanoseconds kInterval = std::chrono::seconds(2);
  auto meter = std::make_shared<transfer::RateMeter>();
  auto last = std::make_shared<Nanoseconds>(context.services.clock.monotonic().time_since_epoch());
  uint64_t* in_place = &in_place_[folder.str()];
  return [this, doing, meter, last, in_place](const transfer::Progress& progress) {
    // What was there and did not have to be moved is what earlier tries have left.
    const uint64_t there =
        progress.done_bytes - std::min(progress.done_bytes, progress.moved_bytes);
    gained_bytes += there - std::min(there, *in_place);
    *in_place = std::max(*in_place, there);
    const Nanoseconds now = context.services.clock.monotonic().time_since_epoch();
    meter->add(now, progress);
    if (now - *last < kInterval) return;
    *last = now;
    char text[120];
    std::snprintf(text, sizeof text, "%s %.1f of %.1f MB, %.1f MB/s", doing.c_str(),
                  static_cast<double>(progress.done_bytes) / 1e6,
                  static_cast<double>(progress.total_bytes) / 1e6, meter->bytes_per_second() / 1e6);
    std::string words = text;
    if (const auto left = meter->time_left())
      words += ", " + std::to_string(left->count()) + " s left";
    context.live.show(plan.round, facility.facility, words);
  };
}

}  // namespace xffl::facility
