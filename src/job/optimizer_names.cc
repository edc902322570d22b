#include "xffl/job/optimizer_names.h"

#include <cstdio>

namespace xffl::job {

std::string optimizer_state_name(const JobKey& key) {
  char round[24];
  std::snprintf(round, sizeof round, "r%04d-", key.round);
  return round + key.nonce;
}

}  // namespace xffl::job
