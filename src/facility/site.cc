#include "site.h"

#include <algorithm>
#include <cstdio>

#include "xffl/base/log.h"
#include "xffl/base/scrub.h"

namespace xffl::facility {

Tail last_bytes(remote::Session& session, const RemotePath& path, uint64_t count) {
  const auto info = session.stat(path);
  if (!info) return {};
  std::vector<std::byte> tail(std::min<uint64_t>(info->size_bytes, count));
  tail.resize(session.read(path, info->size_bytes - tail.size(), tail));
  return {{reinterpret_cast<const char*>(tail.data()), tail.size()}, info->size_bytes <= count};
}

std::string scrubbed_tail(remote::Session& session, const RemotePath& path, size_t max_bytes) {
  const Tail tail = last_bytes(session, path, max_bytes + kLongestSecret);
  return scrubbed_end(tail.text, max_bytes, tail.is_whole);
}

std::string printable_tail(remote::Session& session, const RemotePath& path) {
  return log::printable(scrubbed_tail(session, path, 600));
}

Site::Site(Context& run, const plan::RoundPlan& round, const plan::FacilityPlan& where)
    : context(run),
      plan(round),
      facility(where),
      settings(run.experiment.facility(where.facility)),
      session(context.guarded.of(context.services.connect(settings))),
      bulk(context.guarded.of(context.services.connect_transfer(settings))),
      scheduler(guard(context.services.scheduler(settings, session))) {}

job::JobSpec Site::spec(int attempt) const {
  return plan::job_spec(context.experiment, context.identity, plan, facility, attempt);
}

job::JobSpec Site::pushed_spec(int attempt) const {
  job::JobSpec wanted = spec(attempt);
  try {
    const job::JobSpec pushed = job::read_job_spec(archive() / plan::kJobFile);
    if (pushed.key == wanted.key) wanted.on_stop = pushed.on_stop;
  } catch (const Error& error) {  // then today's settings decide
    log::debug("the stored job.json is not readable",
               {name_field(), {"attempt", attempt}, {"problem", error.what()}});
  }
  return wanted;
}

void Site::sleep(Nanoseconds duration, std::stop_token stop) {
  if (!context.services.clock.sleep(duration, stop))
    throw Error(ErrorKind::kCancelled, "stopped on request");
}

transfer::OnProgress Site::progress(const std::string& activity, const RemotePath& folder) {
  static constexpr Nanoseconds kInterval = std::chrono::seconds(2);
  auto meter = std::make_shared<transfer::RateMeter>();
  auto last = std::make_shared<Nanoseconds>(context.services.clock.monotonic().time_since_epoch());
  uint64_t* in_place = &in_place_[folder.str()];
  return [this, activity, meter, last, in_place](const transfer::Progress& progress) {
    // Bytes in place that the transfer did not move are from earlier tries.
    const uint64_t there =
        progress.done_bytes - std::min(progress.done_bytes, progress.moved_bytes);
    gained_bytes += there - std::min(there, *in_place);
    *in_place = std::max(*in_place, there);
    const Nanoseconds now = context.services.clock.monotonic().time_since_epoch();
    meter->add(now, progress);
    if (now - *last < kInterval) return;
    *last = now;
    char text[120];
    std::snprintf(text, sizeof text, "%s %.1f of %.1f MB, %.1f MB/s", activity.c_str(),
                  static_cast<double>(progress.done_bytes) / 1e6,
                  static_cast<double>(progress.total_bytes) / 1e6, meter->bytes_per_second() / 1e6);
    std::string shown = text;
    if (const auto left = meter->time_left())
      shown += ", " + std::to_string(left->count()) + " s left";
    show(shown);
  };
}

}  // namespace xffl::facility
