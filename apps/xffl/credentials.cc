#include "credentials.h"

#include <chrono>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/services.h"

namespace xffl {

std::map<FacilityName, status::EndingCredential> ending_credentials(
    const config::Experiment& experiment) {
  constexpr std::chrono::hours kSoon{2};
  std::map<FacilityName, status::EndingCredential> credentials;
  for (const config::Facility& facility : experiment.facilities) try {
      if (facility.access != config::AccessKind::kSsh) continue;
      const auto ends =
          remote::credential_expiry(facility::ssh_settings(facility, experiment.project_folder));
      if (ends && *ends - SystemClock().utc() <= kSoon)
        credentials[facility.name] = {*ends, facility.ssh.renew};
    } catch (const Error& error) {  // the next log-in reports the problem
      log::debug("the certificate cannot be read",
                 {{"facility", facility.name.str()}, {"problem", error.what()}});
    }
  return credentials;
}

}  // namespace xffl
