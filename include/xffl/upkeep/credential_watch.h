// Tells people ahead that a certificate ends: two hours before, and half an hour.
//
// Jobs do not need it; but after its end nothing is fetched or submitted until it is renewed.
#pragma once

#include <map>
#include <optional>
#include <thread>

#include "xffl/facility/context.h"

namespace xffl::upkeep {

// What was said of each facility's certificate.
class CertificateWarnings {
 public:
  /// The time left, when it is to be said now: once within two hours, once within half an hour of
  /// `ends`, and again for another certificate. Nothing for one that does not end or has ended
  /// (then the facility is PAUSED(auth), and says so).
  std::optional<std::chrono::minutes> due(const FacilityName& facility,
                                          std::optional<Clock::UtcTime> ends, Clock::UtcTime now);

 private:
  struct Said {
    Clock::UtcTime of{};
    int warnings = 0;
  };
  std::map<FacilityName, Said> said_;
};

// Looks twice a minute while a run goes on.
class CredentialWatch {
 public:
  explicit CredentialWatch(const facility::Context& context);

 private:
  std::jthread thread_;
};

}  // namespace xffl::upkeep
