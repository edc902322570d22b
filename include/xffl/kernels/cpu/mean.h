// The arithmetic of a weighted mean, in float64.
//
// These loops define the bytes of a mean: each product, sum and quotient is one IEEE float64
// operation, and elements are independent of each other. Every instruction set gives the same
// bytes.
#pragma once

#include <span>

namespace xffl::kernels {

/// sum = weight * x
void start_sum(std::span<const float> x, double weight, std::span<double> sum);
/// sum += weight * x
void add_to_sum(std::span<const float> x, double weight, std::span<double> sum);
/// sum /= total
void divide(std::span<double> sum, double total);
/// sum += x
void add(std::span<const float> x, std::span<double> sum);

/// Rounds to float32, to nearest with ties to even.
void round_to_nearest(std::span<const double> from, std::span<float> to);
/// Rounds to odd: cuts an inexact float32 towards zero and sets its last bit. A second rounding, to
/// bfloat16 or to an IEEE half, then gives the result of a single rounding (Boldo and Melquiond,
/// 2008). Float32 has more than two extra bits over either type, also over that type's subnormals.
void round_to_odd(std::span<const double> from, std::span<float> to);

}  // namespace xffl::kernels
