// Reads parameters from Hugging Face folders, writes them, and makes random parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <span>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/llama/parameters.h"

namespace xffl::llama {

/// Throws kRejected; the message names the first tensor that is missing, has another shape or dtype
/// (not F32, F16 or BF16), or is not a LLaMA's. Ignores a tied model's lm_head.weight and old
/// checkpoints' rotary tables.
void check_parameters(const checkpoint::ModelFolder& folder,
                      const std::vector<ParameterSpec>& specs);

/// Fills `out` with the tensor's values from element `begin` on; every conversion is exact.
void read_parameter(const checkpoint::ModelFolder& folder, const ParameterSpec& spec, int64_t begin,
                    std::span<float> out);
/// The same for a contiguous float32 tensor on any device. Several threads read the values.
void read_parameter(const checkpoint::ModelFolder& folder, const ParameterSpec& spec, int64_t begin,
                    at::Tensor out);

/// Fills `out`, contiguous float32, with the initial values: normal(0, initializer_range) for
/// matrices, 1 for norms, 0 for biases. The same seed gives the same bytes on every machine and for
/// every thread count.
void initialize_parameter(const ParameterSpec& spec, double initializer_range, uint64_t seed,
                          at::Tensor out);

/// A parameter's values, read in parts.
struct Values {
  /// The values of a tensor of any floating dtype and device.
  Values(const at::Tensor& tensor);  // NOLINT: a lambda may return either
  Values() = default;

  /// The writer calls `prepare` before each part, in order; `prepare` may be empty.
  std::function<void(int64_t begin, int64_t count)> prepare;
  /// Elements [begin, begin + out.size()), within the part.
  std::function<void(int64_t begin, std::span<float> out)> read;
};

/// Writes config.json and the safetensors files into `folder`, which the call creates, and rounds
/// the values to `dtype` (kF32, kBF16, kF16). Calls `values(i)` once for each spec in order, and
/// reads the result until the next call. Returns the manifest entries of the files with tensors.
std::vector<checkpoint::ManifestFile> write_model(const std::filesystem::path& folder,
                                                  checkpoint::LlamaConfig config,
                                                  const std::vector<ParameterSpec>& specs,
                                                  const std::function<Values(size_t)>& values,
                                                  checkpoint::Dtype dtype);

/// Writes an adapter in PEFT's format: adapter_config.json and adapter_model.safetensors.
std::vector<checkpoint::ManifestFile> write_adapter(const std::filesystem::path& folder,
                                                    const checkpoint::LoraConfig& lora,
                                                    const std::vector<ParameterSpec>& specs,
                                                    const std::function<Values(size_t)>& values,
                                                    checkpoint::Dtype dtype);

}  // namespace xffl::llama
