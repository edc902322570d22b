#include <algorithm>

#include "xffl/kernels/cuda/block.h"

namespace xffl::kernels {
namespace {

constexpr int64_t kMostBlocks = 528;  // four times an H100's multiprocessors
constexpr int64_t kRowsPerBlock = 8;

}  // namespace

int64_t rms_norm_scratch_rows(int64_t rows) {
  return std::clamp(rows / kRowsPerBlock, int64_t{1}, kMostBlocks);
}

}  // namespace xffl::kernels
