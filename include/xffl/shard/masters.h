// The exact values of trained weights, however they are stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "xffl/shard/flat_layout.h"

namespace xffl::shard {

/// What the optimizer updates. kSplit and kNone are for a compute dtype of bfloat16.
enum class Masters {
  kFloat32,  // float32, beside what is computed with where that is narrower
  kSplit,    // the weights and 16 further bits each: float32 masters in two parts, exact
  kNone,     // the weights alone: what rounding takes from a step is lost
};

struct UnitState;

/// Elements `range` of a unit's part in float32: the masters themselves where they are stored so,
/// else a copy.
at::Tensor masters_of(const UnitState& state, const Range& range);
/// Stores float32 values, of any device, as elements `range`; nothing where they are the masters
/// themselves. What is computed with follows where it is another copy: refresh_compute().
void set_masters(const UnitState& state, const Range& range, const at::Tensor& values);

/// Float32 values of a unit's elements from `begin` on, of masters on the host; by several threads
/// at once.
void read_masters(const UnitState& state, int64_t begin, std::span<float> out);
/// Stores such values, and rounds them into a copy that is on the host, too.
void store_masters(const UnitState& state, int64_t begin, std::span<const float> values);

/// A new float32 tensor. The weight (bfloat16) is the master rounded to nearest, ties away from
/// zero, and the remainder (int16) the lower half of the master's bits: exact for every number,
/// infinities included.
at::Tensor join_masters(const at::Tensor& weight, const at::Tensor& remainder);
/// Into `weight` and `remainder`, on the same device as `master`.
void split_masters(const at::Tensor& master, const at::Tensor& weight, const at::Tensor& remainder);

}  // namespace xffl::shard
