#include "xffl/train/pipeline.h"

#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <string>

#include "xffl/base/error.h"
#include "xffl/llama/parameters.h"

namespace xffl::train {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Returns each unit's multiplications per token, relative to a block.
std::vector<double> unit_costs(const checkpoint::LlamaConfig& config) {
  std::vector<double> costs(static_cast<size_t>(config.num_layers) + 2, 0.0);
  for (const llama::ParameterSpec& spec : llama::parameter_specs(config))
    if (spec.unit != 0 && spec.is_matrix())
      costs[static_cast<size_t>(spec.unit)] += static_cast<double>(spec.num_elements());
  // A tied head is a copy of the embedding in the last stage.
  if (config.tie_word_embeddings)
    costs.back() += static_cast<double>(config.vocab_size * config.hidden_size);
  const double block = costs[1];
  for (double& cost : costs) cost /= block;
  return costs;
}

// The best partition of the units into stages, each with at least one unit and a cost of at most
// `limit`. The partition minimizes the largest cost, or the sum of squared costs.
struct Cut {
  double value = kNever;
  std::vector<UnitRange> stages;
};

Cut best_cut(const std::vector<double>& costs, int num_stages, double limit, bool squares) {
  const int num_units = static_cast<int>(costs.size());
  // best[s][u]: the value for the first u units in s stages; from[s][u]: the last stage's first
  // unit.
  std::vector<std::vector<double>> best(static_cast<size_t>(num_stages) + 1,
                                        std::vector<double>(costs.size() + 1, kNever));
  std::vector<std::vector<int>> from(best.size(), std::vector<int>(costs.size() + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s < best.size(); ++s) {
    for (int end = 1; end <= num_units; ++end) {
      double cost = 0;
      for (int first = end - 1; first >= 0; --first) {
        cost += costs[static_cast<size_t>(first)];
        if (cost > limit) break;
        const double before = best[s - 1][static_cast<size_t>(first)];
        const double value = squares ? before + cost * cost : std::max(before, cost);
        if (value > best[s][static_cast<size_t>(end)] || value == kNever) continue;
        best[s][static_cast<size_t>(end)] = value;
        from[s][static_cast<size_t>(end)] = first;
      }
    }
  }
  Cut cut{best.back().back(), {}};
  for (int s = num_stages, end = num_units; s > 0; --s) {
    const int first = from[static_cast<size_t>(s)][static_cast<size_t>(end)];
    cut.stages.insert(cut.stages.begin(), {first, end});
    end = first;
  }
  return cut;
}

}  // namespace

std::vector<UnitRange> stage_units(const checkpoint::LlamaConfig& config, int num_stages) {
  const std::vector<double> costs = unit_costs(config);
  if (num_stages == 1) return {{0, static_cast<int>(costs.size())}};
  if (static_cast<size_t>(num_stages) > costs.size()) {
    throw Error(ErrorKind::kConfig, "training.pipeline.stages is " + std::to_string(num_stages) +
                                        ", but the model has " + std::to_string(costs.size()) +
                                        " units (the embedding, " +
                                        std::to_string(config.num_layers) +
                                        " blocks, the head): use at most one stage per unit");
  }
  const double fastest = best_cut(costs, num_stages, kNever, false).value;
  return best_cut(costs, num_stages, fastest * (1 + 1e-9), true).stages;
}

int64_t max_in_flight(job::PipelineSchedule schedule, int stage, int num_stages,
                      int64_t num_micro_batches) {
  if (num_stages == 1) return std::min<int64_t>(1, num_micro_batches);
  if (schedule == job::PipelineSchedule::kGpipe) return num_micro_batches;
  return std::min<int64_t>(num_stages - stage, num_micro_batches);
}

std::vector<PipelineAction> pipeline_schedule(job::PipelineSchedule schedule, int stage,
                                              int num_stages, int64_t num_micro_batches) {
  using enum PipelineAction::Kind;
  const int64_t in_flight = max_in_flight(schedule, stage, num_stages, num_micro_batches);
  std::vector<PipelineAction> actions;
  int64_t next_forward = 0;
  for (int64_t backward = 0; backward < num_micro_batches; ++backward) {
    const int64_t ahead = std::min(backward + in_flight, num_micro_batches);
    while (next_forward < ahead) actions.push_back({kForward, next_forward++});
    actions.push_back({kBackward, backward});
  }
  return actions;
}

std::vector<int> strided_ranks(int first, int count, int stride) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

Pipeline::Pipeline(comm::Group& world, int num_stages, at::Device device) : data_(&world) {
  if (num_stages == 1) {
    downwards_ = comm::make_single_rank();
    return;
  }
  if (num_stages < 1 || world.size() % num_stages != 0) {
    throw Error(ErrorKind::kConfig, "training.pipeline.stages is " + std::to_string(num_stages) +
                                        ", which does not divide the " +
                                        std::to_string(world.size()) + " ranks of this job");
  }
  const int num_data = world.size() / num_stages;
  const int first = world.rank() / num_data * num_data;
  own_data_ = world.split(strided_ranks(first, num_data, 1), "data");
  data_ = own_data_.get();
  const std::vector<int> column = strided_ranks(world.rank() % num_data, num_stages, num_data);
  downwards_ = world.split(column, "down");
  upwards_ = world.split(column, "up");
  connect(device);
}

// NCCL connects two ranks at their first message, and both ranks wait then. All ranks connect here
// in one order, independent of the schedule.
void Pipeline::connect(at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor down = at::zeros({1}, options), up = at::zeros({1}, options);
  if (!is_first()) start_receive_from_above(down).wait();
  if (!is_last()) send_down(down);
  if (!is_last()) start_receive_from_below(up).wait();
  if (!is_first()) send_up(up);
  finish_sending();
}

void Pipeline::send(comm::Group& group, Sent& last, at::Tensor tensor, int to) {
  wait(last.pending);
  last.tensor = tensor.contiguous();
  last.pending = group.start_send(last.tensor, to);
}

void Pipeline::send_down(at::Tensor tensor) {
  send(*downwards_, sent_down_, std::move(tensor), stage() + 1);
}

void Pipeline::send_up(at::Tensor tensor) {
  send(*upwards_, sent_up_, std::move(tensor), stage() - 1);
}

comm::Pending Pipeline::start_receive_from_above(at::Tensor tensor) {
  return downwards_->start_receive(std::move(tensor), stage() - 1);
}

comm::Pending Pipeline::start_receive_from_below(at::Tensor tensor) {
  return upwards_->start_receive(std::move(tensor), stage() + 1);
}

void Pipeline::wait(comm::Pending& pending) {
  const auto start = std::chrono::steady_clock::now();
  pending.wait();
  waited_ += std::chrono::steady_clock::now() - start;
}

void Pipeline::finish_sending() {
  for (Sent* sent : {&sent_down_, &sent_up_}) {
    wait(sent->pending);
    sent->tensor.reset();
  }
}

}  // namespace xffl::train
