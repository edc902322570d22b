// CPUs other than x86-64: only the loops for the compiler's base target (NEON on ARM).
#include "convert_kernels.h"

namespace xffl::checkpoint {

const std::vector<ConvertKernels>& convert_kernels() {
  static const std::vector<ConvertKernels> kernels{portable_kernels()};
  return kernels;
}

}  // namespace xffl::checkpoint
