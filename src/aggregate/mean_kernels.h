// The arithmetic of the weighted mean, for `xffl aggregate` (offline) and for server_step.cc, on
// pieces of a tensor that stay in the cache.
//
// These loops define the result: every product, sum and quotient is one IEEE float64 operation, and
// the quotient is rounded once to the output's type. Vector code computes elements independently
// with the same operations, so it gives the same bytes.
#pragma once

#include <cstddef>
#include <span>

#include "xffl/checkpoint/dtype.h"

namespace xffl::aggregate {

/// sum = weight * x
void start_sum(std::span<const float> x, double weight, std::span<double> sum);
/// sum += weight * x
void add_to_sum(std::span<const float> x, double weight, std::span<double> sum);
/// sum /= total
void divide(std::span<double> sum, double total);
/// sum += x
void add(std::span<const float> x, std::span<double> sum);

/// Rounds once, to nearest with ties to even, to kF32, kF16 or kBF16; `to` may be unaligned and has
/// from.size() * size_bytes(dtype) bytes. At most kMaxPiece elements.
void round_to(std::span<const double> from, checkpoint::Dtype dtype, std::span<std::byte> to);

inline constexpr size_t kMaxPiece = 2048;  // elements: 16 KiB of float64

}  // namespace xffl::aggregate
