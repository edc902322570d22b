#include "convert_kernels.h"
#include "convert_loops.h"

namespace xffl::checkpoint {

ConvertKernels portable_kernels() { return XFFL_CONVERT_KERNELS("portable"); }

}  // namespace xffl::checkpoint
