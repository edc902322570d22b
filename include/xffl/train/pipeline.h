// Pipeline parallelism: stages, each with some of the model's units, and the data ranks of a stage.
//
// world size = stages x data ranks, and rank = stage x data ranks + data rank. The ranks of one
// stage all-reduce the stage's gradients, so they are neighbours on as few nodes as possible. Only
// one activation per micro-batch travels between stages, across nodes. Rank 0 is in the first
// stage. One stage is plain data parallelism.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"

namespace xffl::train {

/// Units [first, end) of llama::parameter_specs().
struct UnitRange {
  int first = 0;
  int end = 0;
  bool operator==(const UnitRange&) const = default;
};

/// The unit ranges of the stages, in order. Minimizes the cost of the slowest stage, which
/// determines the pipeline's speed. The cost of a unit is its multiplications per token: the
/// elements of a block's seven matrices, vocabulary x hidden for the head, 0 for the embedding.
/// (The cost of attention grows with the sequence but is equal in every block.) Among equal
/// solutions the least sum of squared stage costs wins, then fewer units in early stages, which
/// keep most activations.
///
/// Throws kConfig if there are more stages than units.
std::vector<UnitRange> stage_units(const checkpoint::LlamaConfig& config, int num_stages);

/// A pass of a stage. With either schedule, each weight's gradient adds up in the order of
/// micro-batches, as without a pipeline. The schedules differ in the number of micro-batches whose
/// activations a stage keeps.
struct PipelineAction {
  enum class Kind { kForward, kBackward };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// Returns the actions of a stage: each of `num_micro_batches` once forward and once backward, in
/// ascending order.
///   gpipe (Huang et al., 2019)  all forward, then all backward: all micro-batches in flight
///   1f1b (PipeDream-flush; Narayanan et al., 2021)  a warm-up of num_stages - stage - 1 forwards,
///   then one forward and one backward alternately: at most num_stages - stage in flight
/// A pipeline of one stage has one micro-batch in flight with either schedule.
std::vector<PipelineAction> pipeline_schedule(job::PipelineSchedule schedule, int stage,
                                              int num_stages, int64_t num_micro_batches);

/// The maximum number of micro-batches whose activations the stage holds at once.
int64_t max_in_flight(job::PipelineSchedule schedule, int stage, int num_stages,
                      int64_t num_micro_batches);

/// `count` ranks, beginning with `first`: the members of a group for comm::Group::split.
std::vector<int> strided_ranks(int first, int count, int stride);

class Pipeline {
 public:
  /// Connects neighbouring stages; collective over `world`, which must outlive this object. Tensors
  /// are on `device`. Throws kConfig if `num_stages` does not divide the world.
  Pipeline(comm::Group& world, int num_stages, at::Device device);

  int stage() const { return stages().rank(); }
  int num_stages() const { return stages().size(); }
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() + 1 == num_stages(); }
  /// The ranks of this stage, which share the sequences of a batch.
  comm::Group& data() const { return *data_; }
  /// The ranks that process this rank's sequences, one per stage in order.
  comm::Group& stages() const { return *downwards_; }

  /// Send activations to the next stage (down) and gradients to the previous stage (up). Tensors
  /// are contiguous and arrive in order in each direction; the receiver knows their shape and
  /// dtype. A send waits until the previous tensor in its direction has arrived.
  void send_down(at::Tensor tensor);
  void send_up(at::Tensor tensor);
  comm::Pending start_receive_from_above(at::Tensor tensor);
  comm::Pending start_receive_from_below(at::Tensor tensor);
  /// Waits for a tensor and adds the waiting time to seconds_waited().
  void wait(comm::Pending& pending);
  /// Waits until all sent tensors have arrived.
  void finish_sending();

  /// The total seconds that this rank has waited for other stages.
  double seconds_waited() const { return waited_.count(); }

 private:
  struct Sent {
    comm::Pending pending;
    at::Tensor tensor;  // kept until it has arrived
  };
  void connect(at::Device device);
  void send(comm::Group& group, Sent& last, at::Tensor tensor, int to);

  std::unique_ptr<comm::Group> own_data_;
  comm::Group* data_;
  // Each direction has its own group and connections. Over one NCCL connection a rank that sends
  // down and a rank that sends up at the same time would deadlock.
  std::unique_ptr<comm::Group> downwards_, upwards_;
  Sent sent_down_, sent_up_;
  std::chrono::duration<double> waited_{0};
};

}  // namespace xffl::train
