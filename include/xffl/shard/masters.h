// The exact values of trained weights in every storage.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "xffl/shard/flat_layout.h"

namespace xffl::shard {

/// The storage of the numbers that the optimizer updates. kSplit and kNone require a compute dtype
/// of bfloat16.
enum class Masters {
  kFloat32,  // float32, beside narrower compute weights
  kSplit,    // the weights and 16 further bits each: float32 masters in two parts, exact
  kNone,     // the weights alone: each step loses its rounding errors
};

struct UnitState;

/// Elements `range` of a unit's part in float32: the masters themselves if they are float32, else a
/// copy.
at::Tensor masters_of(const UnitState& state, const Range& range);
/// Stores float32 values from any device as elements `range`; does nothing if the values are the
/// masters themselves. refresh_compute() updates a separate copy.
void set_masters(const UnitState& state, const Range& range, const at::Tensor& values);

/// Reads float32 values of a unit's elements from `begin` on. For masters on the host; several
/// threads may call it at once.
void read_masters(const UnitState& state, int64_t begin, std::span<float> out);
/// Stores such values, and rounds them into a copy on the host.
void store_masters(const UnitState& state, int64_t begin, std::span<const float> values);

/// A new float32 tensor. The weight (bfloat16) is the master rounded to nearest, ties away from
/// zero, and the remainder (int16) the lower half of the master's bits: exact for every number and
/// infinity.
at::Tensor join_masters(const at::Tensor& weight, const at::Tensor& remainder);
/// Splits into `weight` and `remainder`, on the same device as `master`.
void split_masters(const at::Tensor& master, const at::Tensor& weight, const at::Tensor& remainder);

}  // namespace xffl::shard
