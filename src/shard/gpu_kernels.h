// Our CUDA kernels for flat buffers on a GPU: cuda_kernels.cc, or no_cuda_kernels.cc in a build for
// CPUs. Each returns whether it did the work: not for other devices and dtypes, and never without
// CUDA. Work goes to the current stream.
#pragma once

#include <torch/types.h>

#include "xffl/shard/adamw.h"

namespace xffl::shard::gpu {

/// Step `step` of AdamW on a unit's masters; in the same pass its copy becomes the masters rounded.
bool adamw(const UnitState& state, const at::Tensor& first_S, const at::Tensor& second_S,
           const AdamwOptions& options, double learning_rate, double gradient_factor, int64_t step);
/// The sum of squares of each row.
bool square_sums(const at::Tensor& sums_C, const at::Tensor& rows_CE);
bool scale(const at::Tensor& values_S, double factor);

}  // namespace xffl::shard::gpu
