// The values of parameters before training: from a model's or an adapter's files, or of a fresh
// adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "host_copies.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/llama/parameters.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {

class ParameterSource {
 public:
  explicit ParameterSource(const std::filesystem::path& folder) : files_(std::in_place, folder) {}
  /// The initial values of a fresh adapter.
  explicit ParameterSource(uint64_t seed) : seed_(seed) {}

  /// Reads elements, beginning with `begin`. Thread-safe.
  void read(const llama::ParameterSpec& spec, int64_t begin, std::span<float> out) const;
  /// Fills this rank's masters of all parameters, and the compute copies.
  void read(const std::vector<llama::ParameterSpec>& specs,
            shard::FlatParameters& parameters) const;

 private:
  void read_to_host(const llama::ParameterSpec& spec, size_t index,
                    shard::FlatParameters& parameters) const;
  void read_to_device(const llama::ParameterSpec& spec, size_t index,
                      shard::FlatParameters& parameters, DeviceUpload& upload) const;
  std::optional<checkpoint::ModelFolder> files_;
  uint64_t seed_ = 0;
};

/// The source of the trained parameters: the adapter with LoRA, else the model in `folder`.
ParameterSource trained_source(const std::filesystem::path& folder, const LoadOptions& options);

/// Throws kRejected if options.adapter is set and does not match options.lora or the model.
void check_adapter(const LoadOptions& options, const checkpoint::LlamaConfig& config);

}  // namespace xffl::train
