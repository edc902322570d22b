// The programs and data of the accepted trainings, as the facilities' jobs report them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xffl/report/run_story.h"

namespace xffl::report {

// One program and one data set at a facility, in rounds of `first_round` to `last_round` without
// another one between them.
struct Identity {
  FacilityName facility;
  int first_round = 0, last_round = 0;
  std::string trainer;
  std::string program_sha256, data_sha256;  // empty: not reported
  int64_t data_files = 0, data_bytes = 0;
};

/// By facility, then by round. A facility with several rows has changed its program or data, or
/// has not reported them in each round. Evaluations do not count: they read other shards.
std::vector<Identity> identities(const RunStory& story);

}  // namespace xffl::report
