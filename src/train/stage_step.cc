// How it works: a stage starts to receive the input of its next action before it runs the current
// action, so that communication and computation overlap. A send waits for the previous send.
#include "stage_step.h"

#include <map>
#include <optional>
#include <vector>

#include "pipeline_schedule.h"
#include "xffl/llama/pass.h"

namespace xffl::train {
namespace {

struct Incoming {
  comm::Pending pending;
  at::Tensor tensor;
};

struct MicroBatch {
  Batch batch;
  std::optional<llama::Pass> pass;
  Incoming activation, gradient;
};

class StageStep {
 public:
  StageStep(LoadedModel& model, Pipeline& pipeline, const MicroBatches& micro_batches, double scale)
      : model_(model), pipeline_(pipeline), micro_batches_(micro_batches), scale_(scale) {}

  // Called once for each action, in order, at most one action ahead of run().
  void prepare(const PipelineAction& action) {
    const int64_t i = action.micro_batch;
    between();
    if (action.kind == PipelineAction::Kind::kForward) {
      MicroBatch& micro_batch = in_flight_[i];
      micro_batch.batch = micro_batches_.batch(i);
      if (pipeline_.is_first()) return;
      at::Tensor& tensor = micro_batch.activation.tensor;
      tensor = activation_for(model_, micro_batch.batch);
      micro_batch.activation.pending = pipeline_.start_receive_from_above(tensor);
      return;
    }
    if (pipeline_.is_last()) return;
    MicroBatch& micro_batch = in_flight_.at(i);
    micro_batch.gradient.tensor = activation_for(model_, micro_batch.batch);
    micro_batch.gradient.pending = pipeline_.start_receive_from_below(micro_batch.gradient.tensor);
  }

  void run(const PipelineAction& action, bool last_backward) {
    model_.model->set_dropout_seed(micro_batches_.dropout_seed(action.micro_batch));
    if (action.kind == PipelineAction::Kind::kForward) return forward(action.micro_batch);
    model_.parameters->set_last_micro_batch(last_backward);
    backward(action.micro_batch);
  }

  void between() const {
    if (micro_batches_.between) micro_batches_.between();
  }

  at::Tensor nll_sum() const { return nll_sum_; }

 private:
  at::Tensor take(Incoming& incoming) {
    between();
    pipeline_.wait(incoming.pending);
    return std::exchange(incoming.tensor, {});
  }

  void forward(int64_t i) {
    MicroBatch& micro_batch = in_flight_.at(i);
    const Batch& batch = micro_batch.batch;
    micro_batch.pass.emplace(*model_.model, batch.tokens_BT, batch.labels_BT, scale_,
                             batch.documents, batch.targets);
    const at::Tensor output_BTD = micro_batch.pass->forward(take(micro_batch.activation));
    if (!pipeline_.is_last()) pipeline_.send_down(output_BTD);
  }

  void backward(int64_t i) {
    MicroBatch& micro_batch = in_flight_.at(i);
    const at::Tensor grad_BTD = micro_batch.pass->backward(take(micro_batch.gradient));
    if (!pipeline_.is_first()) pipeline_.send_up(grad_BTD);
    if (pipeline_.is_last()) {
      const at::Tensor nll = micro_batch.pass->nll_sum();
      nll_sum_ = nll_sum_.defined() ? nll_sum_ + nll : nll;
    }
    in_flight_.erase(i);
  }

  LoadedModel& model_;
  Pipeline& pipeline_;
  const MicroBatches& micro_batches_;
  double scale_;
  std::map<int64_t, MicroBatch> in_flight_;
  at::Tensor nll_sum_;
};

}  // namespace

at::Tensor activation_for(const LoadedModel& model, const Batch& batch) {
  const at::Tensor& tokens_BT = batch.tokens_BT;
  return at::empty(
      {tokens_BT.size(0), tokens_BT.size(1), model.config.hidden_size},
      at::TensorOptions().dtype(model.parameters->compute_dtype()).device(tokens_BT.device()));
}

at::Tensor run_stage(LoadedModel& model, Pipeline& pipeline, job::PipelineSchedule schedule,
                     const MicroBatches& micro_batches, double scale) {
  const std::vector<PipelineAction> actions =
      pipeline_schedule(schedule, pipeline.stage(), pipeline.num_stages(), micro_batches.count);
  StageStep step(model, pipeline, micro_batches, scale);
  for (size_t i = 0; i < actions.size(); ++i) {
    if (i == 0) step.prepare(actions[0]);
    if (i + 1 < actions.size()) step.prepare(actions[i + 1]);
    step.run(actions[i], i + 1 == actions.size());
  }
  model.model->set_dropout_seed({});
  step.between();
  pipeline.finish_sending();
  return step.nll_sum();
}

}  // namespace xffl::train
