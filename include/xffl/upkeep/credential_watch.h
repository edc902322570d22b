// Warns of a certificate that expires soon: two hours before its end, and half an hour.
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
  /// The time left when a warning is due now: once within two hours of `ends`, once within half an
  /// hour, and again for a new certificate. Nothing without an end, or after it: then the facility
  /// is PAUSED(auth) and reports the reason.
  std::optional<std::chrono::minutes> due(const FacilityName& facility,
                                          std::optional<Clock::UtcTime> ends, Clock::UtcTime now);

 private:
  struct Given {
    Clock::UtcTime ends{};
    int warnings = 0;
  };
  std::map<FacilityName, Given> given_;
};

// Checks the certificates of all facilities twice a minute, in a thread.
class CredentialWatch {
 public:
  explicit CredentialWatch(const facility::Context& context);

 private:
  std::jthread thread_;
};

}  // namespace xffl::upkeep
