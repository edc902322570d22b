// The memory of tensors, as the kernels' types.
#pragma once

#include <torch/types.h>

namespace xffl::kernels {

template <class T>
T* data(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

}  // namespace xffl::kernels
