#include "xffl/train/evaluate.h"

#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>

#include "rank_sync.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/train/run_job.h"

namespace xffl::train {
namespace {

// The number of batches between two calls of should_stop, for each stage of the pipeline.
constexpr uint64_t kBatchesPerStage = 4;

// Returns the NLL of each label in the last stage, where `hits_BT` receives the hits, and the
// activations for the next stage in the other stages.
at::Tensor forward_stage(const LoadedModel& model, const Batch& batch, Pipeline& pipeline,
                         at::Tensor* hits_BT) {
  at::Tensor x_BTD;
  if (!pipeline.is_first()) {
    x_BTD = model.activation_for(batch);
    comm::Pending receiving = pipeline.start_receive_from_above(x_BTD);
    pipeline.wait(receiving);
  }
  return model.model->stage_nll(x_BTD, batch.tokens_BT, batch.labels_BT, batch.documents, hits_BT);
}

// Sets the sums of the NLL and of the hits of this rank's sequences in the last stage; other
// entries stay zero. Returns false if the evaluation was stopped.
bool add_sums(const LoadedModel& model, const Dataset& data, int64_t batch_size, Pipeline& pipeline,
              at::Device device, at::Tensor sums_2S, const std::function<bool()>& should_stop) {
  const auto size = static_cast<uint64_t>(batch_size);
  const auto stride = size * static_cast<uint64_t>(pipeline.data().size());
  const auto stages = static_cast<uint64_t>(pipeline.num_stages());
  const uint64_t chunk = stages == 1 ? 1 : kBatchesPerStage * stages;
  for (uint64_t i = 0; i * stride < data.size(); ++i) {
    if (should_stop && i % chunk == 0 && should_stop()) return false;
    const uint64_t begin =
        std::min(i * stride + size * static_cast<uint64_t>(pipeline.data().rank()), data.size());
    std::vector<uint64_t> indices(std::min(size, data.size() - begin));
    std::iota(indices.begin(), indices.end(), begin);
    // A rank without a sequence takes part: other ranks may need its shards.
    const Batch batch = indices.empty() ? empty_batch(device) : data.batch(indices, device);
    at::Tensor hits_BT;
    const at::Tensor result = forward_stage(model, batch, pipeline, &hits_BT);
    if (!pipeline.is_last()) {
      pipeline.send_down(result);
    } else if (!indices.empty()) {
      const at::Tensor sums_2B = sums_2S.narrow(1, static_cast<int64_t>(begin), result.size(0));
      sums_2B[0].copy_(result.sum(1, false, at::kDouble));
      sums_2B[1].copy_(hits_BT.sum(1, false, at::kDouble));
    }
  }
  pipeline.finish_sending();
  return true;
}

int64_t num_targets(const Dataset& data) {
  int64_t total = 0;
  for (uint64_t i = 0; i < data.size(); ++i) total += data.num_targets(i);
  return total;
}

}  // namespace

std::optional<Evaluation> evaluate(const LoadedModel& model, const Dataset& data,
                                   int64_t batch_size, Pipeline& pipeline, at::Device device,
                                   const std::function<bool()>& should_stop) {
  const auto size = static_cast<int64_t>(data.size());
  at::Tensor sums_2S = at::zeros({2, size}, at::TensorOptions().dtype(at::kDouble).device(device));
  if (model.tied_head) model.tied_head->copy_values();
  if (!add_sums(model, data, batch_size, pipeline, device, sums_2S, should_stop))
    return std::nullopt;
  pipeline.data().all_reduce(sums_2S);
  pipeline.stages().all_reduce(sums_2S);
  sums_2S = sums_2S.to(at::kCPU);
  Evaluation result;
  for (uint64_t i = 0; i < data.size(); ++i) {
    const double sum = sums_2S.const_data_ptr<double>()[i];
    result.hits += std::llround(sums_2S.const_data_ptr<double>()[data.size() + i]);
    const int64_t targets = data.num_targets(i);
    result.tokens += targets;
    result.nll_sum += sum;
    result.per_sequence.push_back(targets == 0 ? std::nullopt
                                               : std::optional(sum / static_cast<double>(targets)));
  }
  return result;
}

Validation::Validation(const job::JobSpec& spec, const JobContext& context,
                       const ModelLimits& limits, Pipeline& pipeline)
    : spec_(spec), context_(context), pipeline_(pipeline) {
  for (const job::ValidationSet& set : spec.validation) {
    sets_.emplace_back(std::vector<std::filesystem::path>{set.path}, limits,
                       static_cast<uint64_t>(spec.training.validation_samples),
                       spec.training.document_mask);
  }
}

Scores Validation::measure(const LoadedModel& model, std::string_view when, StopControl& stop,
                           int64_t steps_done) const {
  const job::TrainingSpec& training = spec_.training;
  const int64_t batch_size = training.validation_batch_size > 0 ? training.validation_batch_size
                                                                : training.micro_batch_size;
  Scores scores;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < sets_.size(); ++i) {
    const std::optional<Evaluation> result =
        evaluate(model, sets_[i], batch_size, pipeline_, context_.device,
                 [&] { return stop.should_finish(steps_done); });
    if (!result) break;
    log_result(i, when, *result);
    scores.nll.push_back(result->nll());
    scores.accuracy.push_back(result->accuracy());
  }
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return scores;
}

void Validation::log_result(size_t index, std::string_view when, const Evaluation& result) const {
  const double nll = result.nll();
  const std::string& name = spec_.validation[index].name;
  if (!std::isfinite(nll)) {
    throw Error(ErrorKind::kFailed, "the validation loss on '" + name + "' (" + std::string(when) +
                                        ") is " + std::to_string(nll) +
                                        ", expected a finite number");
  }
  if (context_.group.rank() != 0) return;
  log::info("validation", {{"set", name},
                           {"when", when},
                           {"loss", nll},
                           {"perplexity", std::exp(nll)},
                           {"accuracy", result.accuracy()},
                           {"tokens", result.tokens}});
}

std::vector<job::ValidationResult> Validation::results(const Scores& before,
                                                       const Scores& after) const {
  // An early finish measures fewer sets after the training, and a checkpoint of an earlier release
  // has no accuracy.
  const auto value = [](const std::vector<double>& scores, size_t i) {
    return i < scores.size() ? scores[i] : 0.0;
  };
  std::vector<job::ValidationResult> results;
  for (size_t i = 0; i < before.size(); ++i)
    results.push_back({spec_.validation[i].name, num_targets(sets_[i]), before.nll[i],
                       value(after.nll, i), value(before.accuracy, i), value(after.accuracy, i)});
  return results;
}

}  // namespace xffl::train
