// Parameters, gradients and their copies in the compute dtype, each in one flat buffer per unit,
// whole or in shards: one path from data parallelism to ZeRO-3 (Rajbhandari et al., 2020) and
// hybrid sharding (Zhao et al., 2023).
//
// Masters and gradients are float32 by default (FlatOptions). In a narrower compute dtype the model
// reads a copy of the masters, which each step refreshes. The model reads the masters themselves in
// float32, and where a master is the weight or contains the weight. The ranks of the shard group
// hold the parts of a sharded buffer; a shard group of one rank aliases its buffers and copies
// nothing. Every mode sums by one reduce-scatter over each unit, so for the same shard group all
// modes give the same bits.
//
// In a step the caller makes these calls. For each micro-batch: open_gradients/close_gradients
// around each unit's backward, and gather/release around each use of the unit's values. Then
// finish_gradients(), gradient_norm(), the optimizer, refresh_compute(). Collective: all ranks make
// the same calls in the same order. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_layout.h"
#include "xffl/shard/side_stream.h"

namespace xffl::shard {

/// The storage of the numbers that the optimizer updates. kSplit and kNone require a compute dtype
/// of bfloat16.
using job::Masters;

/// The buffers that are split over the shard group; each flag implies the flags above.
struct Sharded {
  bool states = false;      // masters and the optimizer's moments (ZeRO-1)
  bool gradients = false;   // ZeRO-2: reduced right after a unit's backward
  bool parameters = false;  // ZeRO-3: gathered for a unit's work, then freed
};

/// The buffers in the host's memory. The memory is pinned if the device is a GPU.
struct Offload {
  bool states = false;      // masters, moments, reduced gradients; the optimizer runs on the host
  bool parameters = false;  // the source of gathers; needs sharded parameters or offloaded states
};

struct FlatOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  Masters masters = Masters::kFloat32;
  at::ScalarType gradient_dtype = at::kFloat;  // or bfloat16, with a compute dtype of bfloat16
  bool with_gradients = true;
  Sharded sharded;
  Offload offload;
  // Without training there are no gradients. The masters are then the compute weights, in the
  // compute dtype, and FlatParameters shards and offloads them like parameters.
  bool frozen = false;
};

/// The groups whose ranks share the work; the groups outlive the parameters. The default is a
/// single rank.
struct Groups {
  comm::Group* gather = nullptr;    // the shard group, for parameters
  comm::Group* reduce = nullptr;    // the same ranks with connections of their own, for gradients
  comm::Group* replicas = nullptr;  // the ranks with the same part in other shard groups
  /// One rank of each pipeline stage: the other stages hold the units that have no elements here.
  comm::Group* stages = nullptr;
};

/// The part of a unit that the optimizer of this rank works on: S elements on the state's device. A
/// unit without parameters has no elements.
struct UnitState {
  at::Tensor master_S;      // float32, or bfloat16 weights: see masters_of()
  at::Tensor remainder_S;   // int16: the other parts of the masters; defined for kSplit only
  at::Tensor gradient_S;    // undefined without gradients
  at::Tensor copy_S;        // the compute weights, unless the masters are the compute weights
  int64_t num_decayed = 0;  // weight decay applies to elements [0, num_decayed)
};

/// A view of the elements `range` of x; undefined if x is undefined.
at::Tensor part_of(const at::Tensor& x, const Range& range);

/// The elements `range` of a unit's part in float32: the masters themselves if they are float32,
/// else a copy of the masters.
at::Tensor masters_of(const UnitState& state, const Range& range);
/// Stores float32 values from any device as the elements `range`. Does nothing if the values are
/// the masters themselves. refresh_compute() updates a separate copy.
void set_masters(const UnitState& state, const Range& range, const at::Tensor& values);

/// Reads float32 values of a unit's elements from `begin` on. For masters on the host. Several
/// threads may call the function at once.
void read_masters(const UnitState& state, int64_t begin, std::span<float> out);
/// Stores float32 values as masters, and rounds them into a copy on the host.
void store_masters(const UnitState& state, int64_t begin, std::span<const float> values);

/// Joins the parts of masters into a new float32 tensor. `weight` (bfloat16) is the master rounded
/// to nearest, ties away from zero; `remainder` (int16) is the lower half of the master's bits.
/// Exact for every number and infinity.
at::Tensor join_masters(const at::Tensor& weight, const at::Tensor& remainder);
/// Splits `master` into `weight` and `remainder`, on the same device as `master`.
void split_masters(const at::Tensor& master, const at::Tensor& weight, const at::Tensor& remainder);

class FlatParameters {
 public:
  FlatParameters(const std::vector<Parameter>& parameters, const FlatOptions& options,
                 Groups groups = {});

  const FlatLayout& layout() const { return layout_; }
  size_t size() const { return layout_.places().size(); }
  int num_units() const { return static_cast<int>(units_.size()); }
  at::ScalarType compute_dtype() const { return options_.compute_dtype; }

  /// The elements of a parameter that this rank's masters hold.
  Range master_range(size_t index) const;
  /// The masters of master_range(), one-dimensional in their stored dtype, without remainders.
  at::Tensor master_part(size_t index) const;
  /// Sets masters of master_range(), from the `begin`th on, and their copy on the host. For masters
  /// on the host. Several threads may call the function at once.
  void store_master_part(size_t index, int64_t begin, std::span<const float> values);
  /// Sets elements [range.begin, ...) of a parameter from values on any device, like set_masters().
  void set_master_part(size_t index, const Range& range, const at::Tensor& values);
  /// Gathers a unit's whole masters in their stored dtypes, and the remainders if there are any.
  /// Collective in the shard group.
  UnitState gather_masters(int unit);
  /// A parameter's view into a unit's whole buffer.
  at::Tensor view(const at::Tensor& flat_P, size_t index) const;

  /// Starts to gather a unit's values, which are valid between gather and release.
  void prefetch(int unit);
  void gather(int unit);
  void release(int unit);
  /// A parameter's values in the compute dtype; valid between gather and release.
  at::Tensor compute(size_t index) const;

  /// Begins a step: the gradients start from zero.
  void begin_step();
  /// Declares whether the next backward pass belongs to the last micro-batch of a step.
  void set_last_micro_batch(bool last) { last_micro_batch_ = last; }
  /// Prepares a unit's gradients for this micro-batch. Returns true when the micro-batch overwrites
  /// the gradients, and false when it adds to them.
  bool open_gradients(int unit);
  /// Declares the unit's gradients of this micro-batch complete.
  void close_gradients(int unit);
  /// A parameter's gradient in the gradients' dtype; valid between open_gradients and
  /// close_gradients.
  at::Tensor gradient(size_t index) const;
  /// Waits until this rank's gradients are the sums over all ranks.
  void finish_gradients();
  /// The sum of the squares of all gradients of all stages, accumulated in float64 unit by unit.
  /// The bits are the same on all ranks of the shard group and of the pipeline, and for all modes
  /// of sharding and numbers of stages. Collective. The result is a scalar on the device; the host
  /// does not wait for the scalar.
  at::Tensor gradient_square_sum() const;

  std::vector<UnitState>& states() { return states_; }
  const std::vector<UnitState>& states() const { return states_; }
  /// The elements of a unit in states()[unit]; the number of parts of the states; the index of this
  /// rank's part.
  Range state_range(int unit) const;
  int num_state_parts() const { return states_split() ? layout_.num_shards() : 1; }
  int state_part() const { return states_split() ? groups_.gather->rank() : 0; }
  /// Whether a lower rank holds the same part as this rank.
  bool is_copy() const {
    return groups_.replicas->rank() > 0 || (!states_split() && groups_.gather->rank() > 0);
  }
  /// The sizes of the unused buffers in the pools for values and for gradients. A pool keeps at
  /// most two unused buffers of a size.
  std::vector<int64_t> spare_values() const { return values_pool_.sizes(); }
  std::vector<int64_t> spare_gradients() const { return gradients_pool_.sizes(); }
  /// Waits for prefetched, unused values. Call finish_gathers() before writing to copies.
  void finish_gathers();
  /// Whether store_master_part() updates all compute weights.
  bool copies_on_host() const;
  /// Updates the compute weights from the masters, or from the copies if the copies are fresh.
  void refresh_compute(bool copies_are_fresh = false);

 private:
  struct Unit {
    at::Tensor compute_P;   // whole; undefined while sharded and released
    at::Tensor compute_S;   // this rank's part, the source of gathers
    at::Tensor gradient_P;  // whole; undefined while sharded and closed
    comm::Pending gathering;
    SideStream::Mark arrived;  // the end of copies from the host
    bool gathering_started = false;
    bool gradient_sent = false;  // to the host, before the end of the step
    at::Tensor gather_source;    // kept until gathered
    bool ready = false;          // compute_P is whole and up to date
    bool has_gradient = false;   // this step's earlier micro-batches are in the gradient
  };
  struct Reduction {
    comm::Pending pending;
    int unit = 0;
    at::Tensor source_P;  // returns to the pool
    at::Tensor part_S;    // goes to gradient_S; undefined: already in gradient_S
    bool add = false;     // to gradient_S
  };
  class Pool {
   public:
    at::Tensor take(int64_t size, const at::TensorOptions& options);
    void give(at::Tensor buffer) { spare_.push_back(std::move(buffer)); }
    std::vector<int64_t> sizes() const {
      std::vector<int64_t> sizes;
      for (const at::Tensor& buffer : spare_) sizes.push_back(buffer.numel());
      return sizes;
    }

   private:
    std::vector<at::Tensor> spare_;
  };

  bool is_split() const { return layout_.num_shards() > 1; }
  bool states_split() const { return is_split() && options_.sharded.states; }
  bool gradients_split() const { return is_split() && options_.sharded.gradients; }
  bool values_transient() const {
    return (is_split() && options_.sharded.parameters) || options_.offload.parameters;
  }
  at::TensorOptions tensor_options(at::ScalarType dtype, bool on_host) const;
  Range in_state(size_t index) const;
  at::Tensor gather_parts(int unit, const at::Tensor& part_S);
  Range mine(int unit) const { return layout_.shard(unit, groups_.gather->rank()); }
  void allocate_values(int unit);
  void allocate_gradients(int unit);
  void start_gather(Unit& unit);
  void finish_reduction(Reduction reduction);
  void limit_reductions();
  void start_copy_to_host(int unit, const at::Tensor& gradient);
  void sum_over_replicas(at::Tensor gradient_S);
  at::Tensor sum_over_units(const std::vector<at::Tensor>& squares_C) const;

  FlatLayout layout_;
  FlatOptions options_;
  std::unique_ptr<comm::Group> single_rank_;
  Groups groups_;
  std::vector<Unit> units_;
  std::vector<UnitState> states_;
  Pool values_pool_;
  Pool gradients_pool_;
  std::deque<Reduction> reductions_;
  SideStream side_;                     // of copies to and from the host's memory
  SideStream::Mark gradients_arrived_;  // the last started copy of gradients
  bool last_micro_batch_ = true;
};

}  // namespace xffl::shard
