// Calls the CPU kernels of a tensor's dtype.
#pragma once

#include <torch/types.h>

#include "xffl/kernels/cpu/block.h"

#ifndef _OPENMP
#error "at::parallel_for would run everything on one thread: compile with -fopenmp"
#endif

namespace xffl::llama {

using kernels::Bf16;
using kernels::Wide;

template <class T>
const T* const_data(const at::Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.const_data_ptr()) : nullptr;
}

template <class T>
T* mutable_data(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

/// Calls `body` with a value of the kernels' type for the dtype of x. Returns false, without
/// calling `body`, for other devices and dtypes.
template <class Body>
bool on_cpu(const at::Tensor& x, const Body& body) {
  if (!x.is_cpu()) return false;
  switch (x.scalar_type()) {
    case at::kFloat:
      body(float{});
      return true;
    case at::kDouble:
      body(double{});
      return true;
    case at::kBFloat16:
      body(Bf16{});
      return true;
    default:
      return false;
  }
}

}  // namespace xffl::llama
