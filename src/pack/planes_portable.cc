#include "plane_kernels.h"
#include "plane_loops.h"

namespace xffl::pack {

PlaneKernels portable_planes() { return XFFL_PLANE_KERNELS("portable"); }

}  // namespace xffl::pack
