#include "xffl/upkeep/credential_watch.h"

#include <map>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::upkeep {
namespace {

using std::chrono::minutes;

constexpr minutes kAhead[] = {minutes(120), minutes(30)};
constexpr std::chrono::seconds kInterval{30};

using Problems = std::map<FacilityName, std::string>;

void check(const facility::Context& context, CertificateWarnings& warnings, Problems& problems) {
  for (const config::Facility& facility : context.experiment.facilities) try {
      const auto ends = context.services.credential_expiry(facility);
      const auto left = warnings.due(facility.name, ends, context.services.clock.utc());
      problems.erase(facility.name);
      if (!left) continue;
      log::warning("a certificate expires soon: renew it in time (running jobs are unaffected)",
                   {{"facility", facility.name.str()},
                    {"ends", format_utc(*ends)},
                    {"left", std::to_string(left->count()) + " min"},
                    {"renew", facility.ssh.renew}});
    } catch (const std::exception& error) {  // a thread's top; the next login reports the error
      // Logs each problem once, not at every check.
      if (std::exchange(problems[facility.name], error.what()) != error.what())
        log::debug("the certificate cannot be read",
                   {{"facility", facility.name.str()}, {"problem", error.what()}});
    }
}

}  // namespace

std::optional<minutes> CertificateWarnings::due(const FacilityName& facility,
                                                std::optional<Clock::UtcTime> ends,
                                                Clock::UtcTime now) {
  if (!ends || *ends <= now) return std::nullopt;
  Given& given = given_[facility];
  if (given.ends != *ends) given = {*ends, 0};
  int due = 0;
  for (const minutes ahead : kAhead) due += *ends - now <= ahead;
  if (due <= given.warnings) return std::nullopt;
  given.warnings = due;
  return std::chrono::duration_cast<minutes>(*ends - now);
}

std::jthread start_credential_watch(const facility::Context& context) {
  if (!context.services.credential_expiry) return {};
  return std::jthread([&context](std::stop_token stop) {
    CertificateWarnings warnings;
    Problems problems;
    SystemClock clock;
    do check(context, warnings, problems);
    while (clock.sleep(kInterval, stop));
  });
}

}  // namespace xffl::upkeep
