#include "xffl/facility/model_bytes.h"

#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/lora.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::facility {
namespace {

uint64_t bytes_of(const std::vector<checkpoint::TensorSpec>& tensors, job::FloatType type) {
  const uint64_t width = type == job::FloatType::kFloat32 ? 4 : 2;
  uint64_t bytes = 0;
  for (const checkpoint::TensorSpec& tensor : tensors)
    bytes += static_cast<uint64_t>(tensor.num_elements()) * width;
  return bytes;
}

// The tensors that a round trains: the adapter's, or the model's.
std::vector<checkpoint::TensorSpec> trained_tensors(const config::Experiment& experiment,
                                                    const checkpoint::ModelFolder& model,
                                                    const std::filesystem::path& folder) {
  const job::Lora& lora = experiment.facilities.front().training.lora;
  if (lora.rank == 0) return model.tensors();
  return checkpoint::lora_tensors(
      checkpoint::read_llama_config(folder),
      checkpoint::checked_lora_config(
          {lora.rank, lora.alpha, lora.dropout, lora.target_modules, lora.rank_stabilized,
           lora.weight_decomposed, lora.modules_to_save},
          "training.lora"),
      checkpoint::Dtype::kF32);
}

}  // namespace

ModelBytes model_bytes(const config::Experiment& experiment, const std::filesystem::path& folder) {
  const checkpoint::ModelFolder model(folder);
  const std::vector<checkpoint::TensorSpec> trained = trained_tensors(experiment, model, folder);
  ModelBytes bytes;
  bytes.published = bytes_of(trained, experiment.aggregation.publish_dtype);
  bytes.update = bytes_of(trained, experiment.aggregation.update_dtype);
  bytes.master = bytes_of(trained, job::FloatType::kFloat32) *
                 (1 + experiment.aggregation.rule().optimizer.state.size());
  if (experiment.facilities.front().training.lora.rank > 0)
    for (const checkpoint::TensorSpec& tensor : model.tensors())
      bytes.adapted += tensor.num_bytes();
  return bytes;
}

}  // namespace xffl::facility
