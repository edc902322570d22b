// What parameters are before training: a model's or an adapter's files, or a fresh adapter.
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
  /// Of an adapter that nobody trained yet.
  explicit ParameterSource(uint64_t seed) : seed_(seed) {}

  /// Elements from `begin` on; by several threads at once.
  void read(const llama::ParameterSpec& spec, int64_t begin, std::span<float> out) const;
  /// This rank's part of each, and what is computed with.
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

/// Of what is trained: of the adapter where there is one, else of the model in `folder`.
ParameterSource trained_source(const std::filesystem::path& folder, const LoadOptions& options);

/// Throws kRejected unless the given adapter, if there is one, is options.lora's, for this model.
void check_adapter(const LoadOptions& options, const checkpoint::LlamaConfig& config);

}  // namespace xffl::train
