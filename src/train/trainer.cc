#include "xffl/train/trainer.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "xffl/base/error.h"
#include "xffl/llama/weights.h"

namespace xffl::train {
namespace {

at::ScalarType compute_dtype(job::FloatType precision) {
  if (precision == job::FloatType::kFloat32) return at::kFloat;
  if (precision == job::FloatType::kBfloat16) return at::kBFloat16;
  throw Error(ErrorKind::kUnsupported, "precision '" + std::string(job::to_string(precision)) +
                                           "' is not supported: use fp32 or bf16");
}

// torch.nn.utils.clip_grad_norm_'s factor.
double clip_factor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace

LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options) {
  LoadedModel loaded;
  loaded.config = checkpoint::read_llama_config(folder);
  loaded.specs = llama::parameter_specs(loaded.config);
  const checkpoint::ModelFolder files(folder);
  llama::check_parameters(files, loaded.specs);
  std::vector<shard::Parameter> layout;
  for (const llama::ParameterSpec& spec : loaded.specs)
    layout.push_back({spec.shape, spec.unit, spec.is_matrix()});
  loaded.parameters = std::make_unique<shard::FlatParameters>(
      layout,
      shard::FlatOptions{options.device, compute_dtype(options.precision), options.with_gradients});
  std::vector<llama::Weight> weights(loaded.specs.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    llama::read_parameter(files, loaded.specs[i], loaded.parameters->master(i));
    weights[i].value = loaded.parameters->compute(i);
    if (options.with_gradients) weights[i].gradient = loaded.parameters->gradient(i);
  }
  loaded.parameters->refresh_compute();
  loaded.model = std::make_unique<llama::Model>(loaded.config, std::move(weights));
  return loaded;
}

Trainer::Trainer(LoadedModel& model, const job::TrainingSpec& training, comm::Group& group,
                 at::Device device)
    : model_(model),
      training_(training),
      group_(group),
      device_(device),
      optimizer_(*model.parameters,
                 {training.beta1, training.beta2, training.epsilon, training.weight_decay}) {}

double Trainer::forward_backward(const Dataset& data, std::span<const uint64_t> indices,
                                 double scale) {
  double nll_sum = 0;
  const auto size = static_cast<size_t>(training_.micro_batch_size);
  for (size_t begin = 0; begin < indices.size(); begin += size) {
    const Batch batch =
        data.batch(indices.subspan(begin, std::min(size, indices.size() - begin)), device_);
    if (batch.num_targets == 0) continue;
    nll_sum +=
        model_.model->accumulate_gradients(batch.tokens_BT, batch.labels_BT, scale).item<double>();
  }
  return nll_sum;
}

StepResult Trainer::step(const Dataset& data, std::vector<uint64_t> indices, int64_t global_tokens,
                         double learning_rate) {
  // Sequences of like length share a micro-batch: less padding.
  std::stable_sort(indices.begin(), indices.end(),
                   [&](uint64_t a, uint64_t b) { return data.length(a) > data.length(b); });
  const double scale = global_tokens == 0 ? 0.0 : 1.0 / static_cast<double>(global_tokens);
  model_.model->clear_gradients();
  const double nll_sum = forward_backward(data, indices, scale);
  model_.model->finish_gradients();
  model_.parameters->reduce_gradients(group_);
  at::Tensor total = at::full({1}, nll_sum, at::TensorOptions().dtype(at::kDouble).device(device_));
  group_.all_reduce(total);

  const StepResult result{global_tokens, total.item<double>() * scale,
                          model_.parameters->gradient_norm()};
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    throw Error(
        ErrorKind::kFailed,
        "the loss is " + std::to_string(std::fabs(result.loss)) + " and the gradient's norm " +
            std::to_string(std::fabs(result.grad_norm)) +
            ", expected finite numbers: stopped before the update (a lower learning rate, a "
            "warm-up or clipping may help; or the given model is damaged)");
  }
  const double factor = clip_factor(result.grad_norm, training_.max_grad_norm);
  if (factor < 1) model_.parameters->scale_gradients(factor);
  optimizer_.step(learning_rate);
  return result;
}

}  // namespace xffl::train
