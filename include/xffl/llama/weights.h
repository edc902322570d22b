// Parameters from and to Hugging Face folders, and random ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/llama/parameters.h"

namespace xffl::llama {

/// Throws kRejected naming the first tensor that is missing, of another shape, not F32, F16 or
/// BF16, or not a LLaMA's. A tied model's lm_head.weight and old checkpoints' rotary tables may be
/// there; they are not used.
void check_parameters(const checkpoint::ModelFolder& folder,
                      const std::vector<ParameterSpec>& specs);

/// Fills `out`, contiguous float32 on any device, with out.numel() of the tensor's values from
/// element `begin` on: exact from every dtype.
void read_parameter(const checkpoint::ModelFolder& folder, const ParameterSpec& spec, int64_t begin,
                    at::Tensor out);

/// Fills `out`, contiguous float32, with the initial values: normal(0, initializer_range) for
/// matrices, ones for norms, zeros for biases. The same bytes for the same seed on every machine
/// and thread count.
void initialize_parameter(const ParameterSpec& spec, double initializer_range, uint64_t seed,
                          at::Tensor out);

/// Writes config.json and the safetensors files into `folder`, which is created; float32 values are
/// rounded to `dtype` (kF32, kBF16, kF16). `value(i)` is called once for each spec in order; any
/// device. Returns what a manifest says of the files with tensors.
std::vector<checkpoint::ManifestFile> write_model(const std::filesystem::path& folder,
                                                  checkpoint::LlamaConfig config,
                                                  const std::vector<ParameterSpec>& specs,
                                                  const std::function<at::Tensor(size_t)>& value,
                                                  checkpoint::Dtype dtype);

/// The same of an adapter, in PEFT's format: adapter_config.json and adapter_model.safetensors.
std::vector<checkpoint::ManifestFile> write_adapter(const std::filesystem::path& folder,
                                                    const checkpoint::LoraConfig& lora,
                                                    const std::vector<ParameterSpec>& specs,
                                                    const std::function<at::Tensor(size_t)>& value,
                                                    checkpoint::Dtype dtype);

}  // namespace xffl::llama
