// From flat buffers to the kernels of kernels/cuda/: cuda_kernels.cc, or no_cuda_kernels.cc in a
// build for CPUs. A function returns false, and does nothing, for other devices and dtypes, and in
// a build without CUDA. Work goes to the current stream.
#pragma once

#include <torch/types.h>

#include "xffl/shard/adamw.h"

namespace xffl::shard::gpu {

/// Step `step` of AdamW on a unit's masters in their storage; the same pass rounds the masters to
/// their copy.
bool adamw(const UnitState& state, const at::Tensor& first_S, const at::Tensor& second_S,
           const AdamwOptions& options, double learning_rate, double gradient_factor, int64_t step);
bool split_masters(const at::Tensor& master, const at::Tensor& weight, const at::Tensor& remainder);
bool join_masters(const at::Tensor& weight, const at::Tensor& remainder, const at::Tensor& master);
/// The sum of squares of each row.
bool square_sums(const at::Tensor& sums_C, const at::Tensor& rows_CE);
bool scale(const at::Tensor& values_S, double factor);

}  // namespace xffl::shard::gpu
