// The model, its flat parameters and the optimizer of one rank; and one optimizer step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/llama/model.h"
#include "xffl/shard/adamw.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/dataset.h"

namespace xffl::train {

/// A LLaMA in flat buffers, loaded from a folder.
struct LoadedModel {
  checkpoint::LlamaConfig config;
  std::vector<llama::ParameterSpec> specs;
  std::unique_ptr<shard::FlatParameters> parameters;
  std::unique_ptr<llama::Model> model;
};

struct LoadOptions {
  at::Device device = at::kCPU;
  job::FloatType precision = job::FloatType::kFloat32;  // kFloat32 or kBfloat16
  bool with_gradients = false;
};

/// Throws what reading does, and kUnsupported for another precision.
LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options);

struct StepResult {
  int64_t tokens = 0;    // target tokens of the step, over all ranks
  double loss = 0;       // mean NLL of them before the step
  double grad_norm = 0;  // before clipping
};

class Trainer {
 public:
  Trainer(LoadedModel& model, const job::TrainingSpec& training, comm::Group& group,
          at::Device device);

  /// One optimizer step on this rank's sequences `indices` (possibly none) of a global batch with
  /// `global_tokens` targets; collective. Throws kFailed on every rank, with the parameters
  /// unchanged, when loss or gradient is not finite.
  StepResult step(const Dataset& data, std::vector<uint64_t> indices, int64_t global_tokens,
                  double learning_rate);

 private:
  double forward_backward(const Dataset& data, std::span<const uint64_t> indices, double scale);

  LoadedModel& model_;
  job::TrainingSpec training_;
  comm::Group& group_;
  at::Device device_;
  shard::Adamw optimizer_;
};

}  // namespace xffl::train
