// AdamW on a CPU in one pass over memory: masters, moments, and the copy that is computed with.
#pragma once

#include <cstdint>

namespace xffl::shard {

/// Of step t.
struct AdamwFactors {
  float gradient = 1;         // multiplies the gradient
  float first = 0;            // 1 - beta1
  float second = 0;           // 1 - beta2
  float kept_second = 0;      // beta2
  float decay = 0;            // learning rate * weight decay
  float step = 0;             // learning rate / (1 - beta1^t)
  float root_correction = 1;  // sqrt(1 - beta2^t)
  float epsilon = 0;
};

/// What is worked on, `count` elements each; copy_bf16 may be null.
struct AdamwBuffers {
  float* master;
  const float* gradient;
  float *first, *second;
  uint16_t* copy_bf16;
};

void adamw_on_cpu(const AdamwBuffers& buffers, int64_t begin, int64_t end,
                  const AdamwFactors& factors);

}  // namespace xffl::shard
