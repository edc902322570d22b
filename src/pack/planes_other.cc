// CPUs other than x86-64: only the loops for the compiler's base target (NEON on ARM).
#include "plane_kernels.h"

namespace xffl::pack {

const std::vector<PlaneKernels>& plane_kernels() {
  static const std::vector<PlaneKernels> kernels{portable_planes()};
  return kernels;
}

}  // namespace xffl::pack
