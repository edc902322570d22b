// Processors other than x86-64: what the compiler's base target vectorises (NEON on ARM).
#include "convert_kernels.h"

namespace xffl::checkpoint {

const std::vector<ConvertKernels>& convert_kernels() {
  static const std::vector<ConvertKernels> kernels{portable_kernels()};
  return kernels;
}

}  // namespace xffl::checkpoint
