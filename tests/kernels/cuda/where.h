// The device of the kernels under test: a GPU (where_cuda.cc), or the CPU that emulates one
// (where_emulated.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "xffl/kernels/cuda/kernels.h"
#include "xffl/kernels/types.h"

namespace xffl::kernels {

at::Device device();
/// Empty if kernels can run, else the reason why not.
std::string reason_to_skip();
Launch on();
/// Emulated threads run in falling order, or in rising order again.
void set_falling(bool falling);

}  // namespace xffl::kernels
