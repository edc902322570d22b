// How the micro-batches of a step overlap: a stage starts to receive the input of its next action
// before it runs the current action. A send waits for the previous send.
#include "trainer.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "checkpoint_json.h"
#include "xffl/base/error.h"
#include "xffl/base/random.h"
#include "xffl/job/supported.h"
#include "xffl/llama/model.h"

namespace xffl::train {
namespace {

constexpr int64_t kMasterPieceElements = 1 << 22;  // converted to float32 at once

// Computes the factor of torch.nn.utils.clip_grad_norm_.
double clip_factor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

struct MicroBatches {
  int64_t count = 0;
  std::function<Batch(int64_t)> batch;            // on the model's device
  std::function<uint64_t(int64_t)> dropout_seed;  // see llama::Model::set_dropout_seed
  std::function<void()> between;                  // called before work that belongs to no phase
};

struct Incoming {
  comm::Pending pending;
  at::Tensor tensor;
};

struct MicroBatch {
  Batch batch;
  std::optional<llama::Pass> pass;
  Incoming activation, gradient;
};

// One step of a pipeline's stage.
class StageStep {
 public:
  StageStep(LoadedModel& model, Pipeline& pipeline, const MicroBatches& micro_batches, double scale)
      : model_(model), pipeline_(pipeline), micro_batches_(micro_batches), scale_(scale) {}

  // Runs forward and backward of all micro-batches, in the order of `schedule`; collective over the
  // pipeline. Every stage reads every batch and so knows the batches' shapes. Adds the gradients of
  // scale * NLL to the stage's parameters, between begin_step() and finish_gradients(). The last
  // stage returns the sums of the NLL and of the hits, two float64 numbers on the device; other
  // stages return an undefined tensor.
  at::Tensor run(job::PipelineSchedule schedule) {
    if (model_.tied_head) {
      model_.tied_head->copy_values();
      model_.tied_head->begin_step();
    }
    const std::vector<PipelineAction> actions = pipeline_schedule(
        schedule, pipeline_.stage(), pipeline_.num_stages(), micro_batches_.count);
    for (size_t i = 0; i < actions.size(); ++i) {
      if (i == 0) prepare(actions[0]);
      if (i + 1 < actions.size()) prepare(actions[i + 1]);
      run_action(actions[i], i + 1 == actions.size());
    }
    model_.model->set_dropout_seed({});
    micro_batches_.between();
    if (pipeline_.is_last()) add_tied_gradient();
    pipeline_.finish_sending();
    return sums_;
  }

 private:
  // run() calls prepare() once for each action, in order, at most one action ahead of run_action().
  void prepare(const PipelineAction& action) {
    const int64_t i = action.micro_batch;
    micro_batches_.between();
    if (action.kind == PipelineAction::Kind::kForward) {
      MicroBatch& micro_batch = in_flight_[i];
      micro_batch.batch = micro_batches_.batch(i);
      if (pipeline_.is_first()) return;
      at::Tensor& tensor = micro_batch.activation.tensor;
      tensor = model_.activation_for(micro_batch.batch);
      micro_batch.activation.pending = pipeline_.start_receive_from_above(tensor);
      return;
    }
    if (pipeline_.is_last()) return;
    MicroBatch& micro_batch = in_flight_.at(i);
    micro_batch.gradient.tensor = model_.activation_for(micro_batch.batch);
    micro_batch.gradient.pending = pipeline_.start_receive_from_below(micro_batch.gradient.tensor);
  }

  void run_action(const PipelineAction& action, bool last_backward) {
    model_.model->set_dropout_seed(micro_batches_.dropout_seed(action.micro_batch));
    if (action.kind == PipelineAction::Kind::kForward) return forward(action.micro_batch);
    if (last_backward && pipeline_.is_first()) add_tied_gradient();
    model_.parameters->set_last_micro_batch(last_backward);
    backward(action.micro_batch);
  }

  void add_tied_gradient() {
    if (model_.tied_head) model_.tied_head->add_gradient(*model_.parameters);
  }

  at::Tensor take(Incoming& incoming) {
    micro_batches_.between();
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
      const at::Tensor sums = at::stack({micro_batch.pass->nll_sum(), micro_batch.pass->hits()});
      sums_ = sums_.defined() ? sums_ + sums : sums;
    }
    in_flight_.erase(i);
  }

  LoadedModel& model_;
  Pipeline& pipeline_;
  const MicroBatches& micro_batches_;
  double scale_;
  std::map<int64_t, MicroBatch> in_flight_;
  at::Tensor sums_;
};

// The step phase of each llama::Phase.
constexpr std::array kStepPhases{StepPhase::kForward, StepPhase::kHead, StepPhase::kBackward};
static_assert(static_cast<int>(llama::Phase::kHead) == 1 &&
              static_cast<int>(llama::Phase::kBackward) == 2);

}  // namespace

void check_finite(const StepResult& result) {
  if (result.finite) return;
  throw Error(ErrorKind::kFailed,
              "the loss is " + std::to_string(std::fabs(result.loss)) +
                  " and the gradient's norm " + std::to_string(std::fabs(result.grad_norm)) +
                  ", expected finite numbers: stopped before the update (a lower learning rate, a "
                  "warm-up or clipping may help; or the input model is damaged)");
}

void LossScale::record(bool finite) {
  if (!finite) {
    scale_ /= 2;
    good_steps_ = 0;
  } else if (++good_steps_ == kGrowthInterval) {
    scale_ *= 2;
    good_steps_ = 0;
  }
}

Proximal::Proximal(shard::FlatParameters& parameters, double mu)
    : parameters_(parameters), mu_(mu) {
  if (mu == 0) return;
  for (const shard::UnitState& state : parameters.states())
    input_S_.push_back(shard::masters_of(state, {0, state.master_S.numel()}).clone());
}

void Proximal::add_gradients(double scale) {
  if (mu_ == 0) return;
  for (size_t unit = 0; unit < input_S_.size(); ++unit) {
    shard::UnitState& state = parameters_.states()[unit];
    for (int64_t begin = 0; begin < state.master_S.numel(); begin += kMasterPieceElements) {
      const int64_t count = std::min(kMasterPieceElements, state.master_S.numel() - begin);
      const at::Tensor moved =
          shard::masters_of(state, {begin, count}).sub(input_S_[unit].narrow(0, begin, count));
      state.gradient_S.narrow(0, begin, count).add_(moved, scale * mu_);
    }
  }
}

Trainer::Trainer(LoadedModel& model, const job::TrainingSpec& training, const JobGroups& groups,
                 Pipeline& pipeline, at::Device device)
    : model_(model),
      training_(training),
      groups_(groups),
      pipeline_(pipeline),
      device_(device),
      proximal_(*model.parameters, training.proximal),
      optimizer_(*model.parameters, shard::optimizer_options(training)),
      loss_scale_(training.precision),
      clock_(device),
      exchange_(groups, *model.parameters, training.groups, device) {
  model_.model->set_phase_hook(
      [this](llama::Phase phase) { clock_.enter(kStepPhases.at(static_cast<size_t>(phase))); });
}

Trainer::~Trainer() { model_.model->set_phase_hook({}); }

// Returns a different seed for each step of the federation, rank and micro-batch. A resumed job
// repeats the seeds.
uint64_t Trainer::dropout_seed(int64_t micro_batch) const {
  uint64_t seed = SplitMix64(training_.seed).next();
  for (const int64_t part : {training_.first_step + optimizer_.num_steps(),
                             static_cast<int64_t>(pipeline_.data().rank()), micro_batch})
    seed = SplitMix64(seed ^ static_cast<uint64_t>(part)).next();
  return seed;
}

at::Tensor Trainer::forward_backward(const Dataset& data, const std::vector<uint64_t>& indices,
                                     double scale) {
  const auto size = static_cast<size_t>(training_.micro_batch_size);
  const auto batch = [&](int64_t i) {
    const size_t begin = std::min(static_cast<size_t>(i) * size, indices.size());
    const std::span<const uint64_t> mine(indices.data() + begin,
                                         std::min(size, indices.size() - begin));
    return mine.empty() ? empty_batch(device_) : data.batch(mine, device_);
  };
  model_.parameters->begin_step();
  const MicroBatches micro_batches{job::num_micro_batches(training_, pipeline_.data().size()),
                                   batch, [this](int64_t i) { return dropout_seed(i); },
                                   [this] { clock_.enter(StepPhase::kOther); }};
  const at::Tensor sums =
      StageStep(model_, pipeline_, micro_batches, scale).run(training_.pipeline.schedule);
  clock_.enter(StepPhase::kBackward);
  model_.parameters->finish_gradients();
  clock_.enter(StepPhase::kOther);
  return sums;
}

// Sums over the last stage's ranks, in the same order as without a pipeline. Other stages add 0.
at::Tensor Trainer::sum_over_ranks(const at::Tensor& mine) const {
  const at::Tensor sum = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(device_));
  if (mine.defined()) sum.copy_(mine);
  pipeline_.data().all_reduce(sum);
  pipeline_.stages().all_reduce(sum);
  return sum;
}

StepResult Trainer::step(const Dataset& data, std::vector<uint64_t> indices, int64_t global_tokens,
                         double learning_rate) {
  // Sequences of similar length share a micro-batch, which needs less padding.
  std::stable_sort(indices.begin(), indices.end(),
                   [&](uint64_t a, uint64_t b) { return data.length(a) > data.length(b); });
  const double per_token = global_tokens == 0 ? 0.0 : 1.0 / static_cast<double>(global_tokens);
  const at::Tensor mine = forward_backward(data, indices, per_token * loss_scale_.value());
  exchange_.exchange_gradients(global_tokens);
  proximal_.add_gradients(loss_scale_.value());
  const at::Tensor nll_and_hits = sum_over_ranks(mine);
  clock_.enter(StepPhase::kNorm);
  const at::Tensor square_sum = model_.parameters->gradient_square_sum();
  clock_.enter(StepPhase::kOther);
  // The host waits for the GPU only here in a step.
  const at::Tensor sums = at::cat({nll_and_hits, square_sum.view({1})}).to(at::kCPU);
  const double* values = sums.const_data_ptr<double>();
  StepResult result{global_tokens, values[0] * per_token,
                    std::sqrt(values[2]) / loss_scale_.value()};
  result.hits = std::llround(values[1]);
  result.phases = clock_.read();
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    result.skipped = std::isfinite(result.loss) && loss_scale_.can_skip();
    result.finite = result.skipped;
    if (result.skipped) loss_scale_.record(false);
    return result;
  }
  // One factor unscales and clips the gradients.
  const double factor =
      clip_factor(result.grad_norm, training_.max_grad_norm) / loss_scale_.value();
  loss_scale_.record(true);
  clock_.enter(StepPhase::kAdamw);
  optimizer_.step(learning_rate, factor);
  clock_.enter(StepPhase::kOther);
  if (device_.is_cpu()) result.phases += clock_.read();
  result.trained_tokens = global_tokens;
  result.trained_batches = 1;
  return result;
}

StepResult Trainer::end_step(int64_t steps_done, const StepResult& mine) {
  exchange_.after_step(steps_done, mine.trained_tokens);
  return over_groups(mine);
}

StepResult Trainer::over_groups(const StepResult& mine) const {
  if (groups_.count() == 1) return mine;
  const auto tokens = static_cast<double>(mine.tokens);
  const std::vector<double> sums{tokens,
                                 mine.loss * tokens,
                                 mine.grad_norm,
                                 mine.skipped ? 1.0 : 0.0,
                                 static_cast<double>(mine.trained_tokens),
                                 static_cast<double>(mine.trained_batches),
                                 static_cast<double>(mine.hits)};
  const at::Tensor on_device = at::tensor(sums, at::kDouble).to(device_);
  groups_.across().all_reduce(on_device);
  const at::Tensor host = on_device.to(at::kCPU);
  const double* values = host.const_data_ptr<double>();
  StepResult all;
  all.tokens = std::llround(values[0]);
  all.loss = values[0] > 0 ? values[1] / values[0] : 0;
  all.grad_norm = values[2] / groups_.count();
  all.skipped = values[3] > 0;
  all.trained_tokens = std::llround(values[4]);
  all.trained_batches = std::llround(values[5]);
  all.hits = std::llround(values[6]);
  all.phases = mine.phases;
  return all;
}

Json Trainer::gather_counts() {
  const std::array<double, 2> scale = loss_scale_.state();
  const std::vector<double> values{static_cast<double>(optimizer_.num_steps()), scale[0], scale[1],
                                   static_cast<double>(exchange_.tokens_since())};
  const at::Tensor mine = at::tensor(values, at::kDouble);
  const at::Tensor all = at::empty({groups_.count() * static_cast<int64_t>(kNumCounts)},
                                   at::TensorOptions().dtype(at::kDouble).device(device_));
  groups_.across().all_gather(all, mine.to(device_));
  const at::Tensor host = all.to(at::kCPU);
  const double* of_group = host.const_data_ptr<double>();
  Json counts = Json::array();
  for (int g = 0; g < groups_.count(); ++g, of_group += kNumCounts)
    counts.push_back(std::vector<double>(of_group, of_group + kNumCounts));
  return counts;
}

void Trainer::restore_counts(const Json& counts) {
  const auto mine =
      counts.at(static_cast<size_t>(groups_.index())).get<std::array<double, kNumCounts>>();
  optimizer_.set_num_steps(std::llround(mine[0]));
  loss_scale_.set_state({mine[1], mine[2]});
  exchange_.set_tokens_since(std::llround(mine[3]));
}

}  // namespace xffl::train
