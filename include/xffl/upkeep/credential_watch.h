// Warns two hours and half an hour before a certificate expires.
//
// Jobs do not need the certificate, but without it xffl can neither fetch nor submit.
#pragma once

#include <map>
#include <optional>
#include <thread>

#include "xffl/facility/context.h"

namespace xffl::upkeep {

// The warnings already given about each facility's certificate.
class CertificateWarnings {
 public:
  /// The time left when a warning is due: once within two hours of `ends`, once within half an
  /// hour, and again for a new certificate. Empty without `ends`, and after `ends`: the facility is
  /// then paused, and its pause shows the reason.
  std::optional<std::chrono::minutes> due(const FacilityName& facility,
                                          std::optional<Clock::UtcTime> ends, Clock::UtcTime now);

 private:
  struct Given {
    Clock::UtcTime ends{};
    int warnings = 0;
  };
  std::map<FacilityName, Given> given_;
};

/// A thread that checks the certificates of all facilities twice a minute until a stop request.
std::jthread start_credential_watch(const facility::Context& context);

}  // namespace xffl::upkeep
