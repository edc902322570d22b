// How a prompt is continued. No torch header: command lines read it.
#pragma once

#include <cstdint>
#include <vector>

#include "xffl/train/sampling.h"

namespace xffl::train {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  std::vector<int64_t> stop_ids;  // the first of them drawn is the last token
};

}  // namespace xffl::train
