// The options of generate(). Without torch headers, so that command lines can include this file.
#pragma once

#include <cstdint>
#include <vector>

#include "xffl/train/sampling.h"

namespace xffl::train {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  std::vector<int64_t> stop_ids;  // the first drawn stop id ends the text
};

}  // namespace xffl::train
