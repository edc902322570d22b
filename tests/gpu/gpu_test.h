// Fixture and helpers of the tests on a GPU.
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace xffl {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU is visible here";
  }
};

inline const at::Device kGpu{at::kCUDA, 0};

inline double gpu_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kCPU, at::kDouble);
  return (found.to(at::kCPU, at::kDouble) - wide).norm().item<double>() /
         wide.norm().item<double>();
}

inline double gpu_tolerance(at::ScalarType dtype) {
  if (dtype == at::kFloat) return 1e-6;
  return dtype == at::kBFloat16 ? 8e-3 : 1e-3;
}

}  // namespace xffl
