// Processors other than x86-64: what the compiler's base target vectorises (NEON on ARM).
#include "plane_kernels.h"

namespace xffl::pack {

const std::vector<PlaneKernels>& plane_kernels() {
  static const std::vector<PlaneKernels> kernels{portable_planes()};
  return kernels;
}

}  // namespace xffl::pack
