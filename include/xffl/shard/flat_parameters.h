// Parameters, gradients and their copies in the compute dtype, each in one flat buffer per unit,
// whole or in shards: one path from data parallelism to ZeRO-3 (Rajbhandari et al., 2020) and
// hybrid sharding (Zhao et al., 2023).
//
// Masters and gradients are float32 unless FlatOptions say otherwise. In a narrower compute dtype
// the model reads a copy that is refreshed after each step; in float32, and where the weights are a
// part of the masters or all that there is, it reads the masters themselves. What is sharded is
// held in parts by the ranks of the shard group; a world of one, or a shard group of one, aliases
// its buffers and copies nothing. The sums are those of one reduce-scatter over each unit whatever
// is sharded, so for the same shard group all modes give the same bits.
//
// In a step: for each micro-batch, open_gradients/close_gradients around each unit's backward and
// gather/release around each use of its values; then finish_gradients(), gradient_norm(), the
// optimizer, refresh_compute(). Collective: all ranks do the same in the same order. Not
// thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "xffl/comm/group.h"
#include "xffl/shard/flat_layout.h"
#include "xffl/shard/masters.h"
#include "xffl/shard/side_stream.h"

namespace xffl::shard {

/// What each rank of the shard group holds a part of only; each line implies those above.
struct Sharded {
  bool states = false;      // masters and the optimizer's moments (ZeRO-1)
  bool gradients = false;   // ZeRO-2: reduced as soon as a unit's backward is done
  bool parameters = false;  // ZeRO-3: gathered for a unit's work, freed behind it
};

/// What lives in the host's memory, pinned where the device is a GPU.
struct Offload {
  bool states = false;      // masters, moments and reduced gradients; the optimizer runs there
  bool parameters = false;  // what is gathered from; needs sharded parameters or states offloaded
};

struct FlatOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  Masters masters = Masters::kFloat32;
  at::ScalarType gradient_dtype = at::kFloat;  // or bfloat16, with such a compute dtype
  bool with_gradients = true;
  Sharded sharded;
  Offload offload;
  // Nothing is trained: no gradients, and the masters are what is computed with, in its dtype,
  // sharded and offloaded as parameters are.
  bool frozen = false;
};

/// Whose ranks share the work; all must outlive the parameters. The default is a world of one.
struct Groups {
  comm::Group* gather = nullptr;    // the shard group, for parameters
  comm::Group* reduce = nullptr;    // the same ranks with connections of their own, for gradients
  comm::Group* replicas = nullptr;  // the ranks that hold this rank's part in other shard groups
  /// One rank of each pipeline stage: the others hold the units that have no elements here.
  comm::Group* stages = nullptr;
};

/// The part of a unit that the optimizer of this rank works on: S elements on the state's device. A
/// unit without parameters has none.
struct UnitState {
  at::Tensor master_S;      // float32, or bfloat16 weights: see masters_of()
  at::Tensor remainder_S;   // int16: the other parts of the masters; undefined but for kSplit
  at::Tensor gradient_S;    // undefined without gradients
  at::Tensor copy_S;        // what is computed with, if that is not the masters themselves
  int64_t num_decayed = 0;  // elements [0, num_decayed) decay
};

class FlatParameters {
 public:
  FlatParameters(const std::vector<Parameter>& parameters, const FlatOptions& options,
                 Groups groups = {});

  const FlatLayout& layout() const { return layout_; }
  size_t size() const { return layout_.places().size(); }
  int num_units() const { return static_cast<int>(units_.size()); }
  at::ScalarType compute_dtype() const { return options_.compute_dtype; }

  /// Which of a parameter's elements this rank's masters hold.
  Range master_range(size_t index) const;
  /// Those masters as they are stored, one-dimensional, but for the remainders.
  at::Tensor master_part(size_t index) const;
  /// Sets them to float32 values; see set_masters().
  void set_master_part(size_t index, const at::Tensor& values);
  /// Sets some of them, from the `begin`th on, and a copy in the same memory: of masters on the
  /// host, by several threads at once.
  void store_master_part(size_t index, int64_t begin, std::span<const float> values);
  /// Elements [range.begin, ...) of those of a parameter, of any device, as set_masters() does.
  void set_master_part(size_t index, const Range& range, const at::Tensor& values);
  /// A unit's whole masters in float32; collective in the shard group; a copy where they are
  /// sharded or stored otherwise.
  at::Tensor gather_masters(int unit);
  /// The same as they are stored: masters and, if there are any, remainders; nothing else.
  UnitState gather_stored_masters(int unit);
  /// A parameter within such a buffer.
  at::Tensor view(const at::Tensor& flat_P, size_t index) const;

  /// Starts bringing a unit's values together; they are used between gather and release.
  void prefetch(int unit);
  void gather(int unit);
  void release(int unit);
  /// Valid between gather and release, in the compute dtype.
  at::Tensor compute(size_t index) const;

  /// A step begins: gradients start from nothing.
  void begin_step();
  /// Must be told before the backward of a step's last micro-batch.
  void set_last_micro_batch(bool last) { last_micro_batch_ = last; }
  /// Whether a unit's gradients start anew with this micro-batch, or add to those that are there.
  bool open_gradients(int unit);
  /// The unit's gradients of this micro-batch are complete.
  void close_gradients(int unit);
  /// Valid between open_gradients and close_gradients, in the gradients' dtype.
  at::Tensor gradient(size_t index) const;
  /// Waits until this rank's gradients are the sums over all ranks.
  void finish_gradients();
  /// The sum of the squares of all gradients, of all stages, accumulated in float64 unit by unit:
  /// the same bits on all ranks of the shard group and of the pipeline, and for all modes of
  /// sharding and numbers of stages. Collective.
  double gradient_square_sum() const;
  /// The same as a scalar on the device, which nobody has waited for.
  at::Tensor gradient_square_sums() const;
  void scale_gradients(double factor);

  std::vector<UnitState>& states() { return states_; }
  const std::vector<UnitState>& states() const { return states_; }
  /// The elements of a unit that states()[unit] holds; which part this is, of how many.
  Range state_range(int unit) const;
  int num_state_parts() const { return states_split() ? layout_.num_shards() : 1; }
  int state_part() const { return states_split() ? groups_.gather->rank() : 0; }
  /// Whether another rank holds the same part before this one.
  bool is_copy() const {
    return groups_.replicas->rank() > 0 || (!states_split() && groups_.gather->rank() > 0);
  }
  /// The elements of buffers that hold no unit and are kept for the next: of its values, or its
  /// gradients. At most two of a size.
  std::vector<int64_t> spare_values() const { return values_pool_.sizes(); }
  std::vector<int64_t> spare_gradients() const { return gradients_pool_.sizes(); }
  /// Waits for what was prefetched and not used: before copies are written to.
  void finish_gathers();
  /// Whether store_master_part() brings all that is computed with up to date.
  bool copies_on_host() const;
  /// Brings what is computed with up to the masters, from the copies if these are up to date.
  void refresh_compute(bool copies_are_fresh = false);

 private:
  struct Unit {
    at::Tensor compute_P;   // whole; undefined while sharded and released
    at::Tensor compute_S;   // this rank's part, what is gathered from
    at::Tensor gradient_P;  // whole; undefined while sharded and closed
    comm::Pending gathering;
    SideStream::Mark arrived;  // of what comes from the host's memory
    bool gathering_started = false;
    bool gradient_sent = false;  // to the host's memory, before the step's end
    at::Tensor gather_source;    // kept until gathered
    bool ready = false;          // compute_P is whole and up to date
    bool has_gradient = false;   // this step's earlier micro-batches are in the gradient
  };
  struct Reduction {
    comm::Pending pending;
    int unit = 0;
    at::Tensor source_P;  // returns to the pool
    at::Tensor part_S;    // goes to gradient_S; undefined: it is there already
    bool add = false;     // to what is there
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
  std::unique_ptr<comm::Group> alone_;
  Groups groups_;
  std::vector<Unit> units_;
  std::vector<UnitState> states_;
  Pool values_pool_;
  Pool gradients_pool_;
  std::deque<Reduction> reductions_;
  SideStream side_;                     // of copies to and from the host's memory
  SideStream::Mark gradients_arrived_;  // the last of those that were started
  bool last_micro_batch_ = true;
};

}  // namespace xffl::shard
