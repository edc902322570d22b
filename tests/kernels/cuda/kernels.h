// The common parts of the kernels' tests: random tensors in every dtype and alignment, and runs
// that must give the same bits twice.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <vector>

#include "where.h"
#include "xffl/kernels/types.h"

namespace xffl::kernels {

class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

template <class T>
T* data(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

/// Calls body with a value of the kernels' type for a dtype.
template <class Body>
void with_type(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kFloat) return body(float{});
  return dtype == at::kBFloat16 ? body(Bf16{}) : body(Half{});
}

inline double tolerance(at::ScalarType dtype) {
  if (dtype == at::kFloat) return 1e-6;
  return dtype == at::kBFloat16 ? 8e-3 : 1e-3;
}

/// An unfilled tensor on the device, `offset` elements behind a multiple of 16 bytes.
inline at::Tensor place(at::IntArrayRef shape, at::ScalarType dtype, int64_t offset = 0) {
  const int64_t size = c10::multiply_integers(shape);
  const at::Tensor all =
      at::full({size + offset}, 77, at::TensorOptions().dtype(dtype).device(device()));
  return all.narrow(0, offset, size).view(shape);
}

/// A copy of float64 values on the device, in `dtype`.
inline at::Tensor put(const at::Tensor& values, at::ScalarType dtype, int64_t offset = 0) {
  at::Tensor result = place(values.sizes(), dtype, offset);
  result.copy_(values.detach());
  return result;
}

/// Random float64 values that are exact in `dtype`.
inline at::Tensor exact(at::IntArrayRef shape, at::ScalarType dtype, int seed, double size = 1) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return (at::randn(shape, at::kDouble) * size).to(dtype).to(at::kDouble);
}

inline at::Tensor leaf(const at::Tensor& x) { return x.clone().requires_grad_(true); }

inline double error_of(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor wide = expected.detach().to(at::kDouble);
  const double norm = wide.norm().item<double>();
  return (found.to(at::kCPU, at::kDouble) - wide).norm().item<double>() / (norm > 0 ? norm : 1);
}

/// The bits: NaNs can be compared, too.
inline at::Tensor bits(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kCPU).contiguous();
  return flat.view(flat.element_size() == 2   ? at::kShort
                   : flat.element_size() == 4 ? at::kInt
                                              : at::kLong);
}

/// The result of `run`. A second run, with threads in another order, must give the same bits.
inline std::vector<at::Tensor> stable(const std::function<std::vector<at::Tensor>()>& run) {
  const std::vector<at::Tensor> first = run();
  set_falling(true);
  const std::vector<at::Tensor> second = run();
  set_falling(false);
  for (size_t i = 0; i < first.size(); ++i)
    EXPECT_TRUE(bits(first[i]).equal(bits(second[i]))) << "result " << i << " changed";
  return first;
}

}  // namespace xffl::kernels
