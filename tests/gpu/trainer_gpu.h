// Base of the TrainerGpu tests: each test body runs on a GPU, or on the CPU in a build without
// CUDA.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/llama/parameters.h"
#include "xffl/train/device.h"

namespace xffl::trainer_gpu {

/// The first GPU in a CUDA build, else the CPU; XFFL_TEST_DEVICE=cpu chooses the CPU in both.
inline at::Device test_device() {
  const char* wanted = std::getenv("XFFL_TEST_DEVICE");
  if (!kernels::gpu::kBuiltIn || (wanted != nullptr && std::string(wanted) == "cpu"))
    return at::kCPU;
  return {at::kCUDA, 0};
}

class TrainerGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (test_device().is_cuda() && kernels::gpu::list().empty())
      GTEST_SKIP() << "no GPU is visible here (XFFL_TEST_DEVICE=cpu runs this test on the CPU)";
    // The tensors are too small for several threads, which would wait for each other on a busy CPU.
    at::set_num_threads(1);
  }
  void TearDown() override { at::set_num_threads(num_threads_); }

 private:
  int num_threads_ = at::get_num_threads();
};

/// Selects deterministic operators within a scope: the setting of training.deterministic.
class Deterministic {
 public:
  Deterministic() : cudnn_attention_(at::globalContext().userEnabledCuDNNSDP()) {
    train::use_deterministic_algorithms(test_device());
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
  ~Deterministic() {
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(false, false);
    context.setDeterministicCuDNN(false);
    context.setSDPUseCuDNN(cudnn_attention_);
  }

 private:
  bool cudnn_attention_;
};

/// The attention backend of training.document_mask within a scope.
class AttentionOfAnyLength {
 public:
  AttentionOfAnyLength() : cudnn_attention_(at::globalContext().userEnabledCuDNNSDP()) {
    train::use_attention_of_any_length(test_device());
  }
  AttentionOfAnyLength(const AttentionOfAnyLength&) = delete;
  AttentionOfAnyLength& operator=(const AttentionOfAnyLength&) = delete;
  ~AttentionOfAnyLength() { at::globalContext().setSDPUseCuDNN(cudnn_attention_); }

 private:
  bool cudnn_attention_;
};

/// ||found - expected|| / ||expected|| in float64 on the CPU; NaN and infinity propagate.
inline double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor exact = expected.to(at::kCPU, at::kDouble);
  return (found.to(at::kCPU, at::kDouble) - exact).norm().item<double>() /
         exact.norm().item<double>();
}

/// Two layers with grouped queries; head_dim 64 has a flash attention kernel.
inline checkpoint::LlamaConfig two_layers() {
  checkpoint::LlamaConfig config;
  config.vocab_size = 136;
  config.hidden_size = 64;
  config.intermediate_size = 104;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;  // not hidden / heads
  config.rms_norm_eps = 1e-5;
  config.max_position_embeddings = 256;
  return config;
}

/// Float64 values that `dtype` represents exactly: normal(0, spread) matrices, norms about 1.
inline std::vector<at::Tensor> random_parameters(const std::vector<llama::ParameterSpec>& specs,
                                                 at::ScalarType dtype, double spread) {
  std::vector<at::Tensor> values;
  for (const llama::ParameterSpec& spec : specs) {
    const double mean = spec.is_matrix() ? 0 : 1;
    values.push_back(
        (at::randn(spec.shape, at::kDouble) * spread + mean).to(dtype).to(at::kDouble));
  }
  return values;
}

}  // namespace xffl::trainer_gpu
