// Where the kernels under test run: on a GPU, or emulated on the CPU. One of two .cc files.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "xffl/kernels/cuda/launch.h"
#include "xffl/kernels/types.h"

namespace xffl::kernels {

at::Device device();
/// Empty where kernels can run, else why they cannot.
std::string reason_to_skip();
Launch on();
/// Emulated threads run in falling order, or in rising order again.
void set_falling(bool falling);

}  // namespace xffl::kernels
