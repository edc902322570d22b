// The arithmetic of a weighted mean (kernels/cpu/mean.h), on pieces of a tensor that stay in the
// cache, and the mean's one rounding to the output's type.
#pragma once

#include <cstddef>
#include <span>

#include "xffl/checkpoint/dtype.h"
#include "xffl/kernels/cpu/mean.h"

namespace xffl::aggregate {

using kernels::add;
using kernels::add_to_sum;
using kernels::divide;
using kernels::start_sum;

/// Rounds once, to nearest with ties to even, to kF32, kF16 or kBF16; `to` may be unaligned and has
/// from.size() * size_bytes(dtype) bytes. At most kMaxPiece elements.
void round_to(std::span<const double> from, checkpoint::Dtype dtype, std::span<std::byte> to);

inline constexpr size_t kMaxPiece = 2048;  // elements: 16 KiB of float64

}  // namespace xffl::aggregate
