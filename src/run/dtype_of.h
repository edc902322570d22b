// The tensors' type in a file for a float type of the configuration.
#pragma once

#include "xffl/checkpoint/dtype.h"
#include "xffl/job/job_spec.h"

namespace xffl::run {

inline checkpoint::Dtype dtype_of(job::FloatType type) {
  switch (type) {
    case job::FloatType::kFloat32:
      return checkpoint::Dtype::kF32;
    case job::FloatType::kBfloat16:
      return checkpoint::Dtype::kBF16;
    case job::FloatType::kFloat16:
      return checkpoint::Dtype::kF16;
  }
  return checkpoint::Dtype::kF32;
}

}  // namespace xffl::run
