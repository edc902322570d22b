// The buffers of FlatParameters, and the masters in every storage. gather_release.cc works on the
// units' values, reduce_gradients.cc on their gradients.
//
// P elements of a unit's flat buffer, S elements of a rank's shard of the buffer.
#include "xffl/shard/flat_parameters.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>

#include "xffl/base/error.h"
#include "xffl/kernels/cpu/optimizer.h"
#include "xffl/kernels/cuda/gpu.h"

namespace xffl::shard {
namespace {

comm::Group& or_single_rank(comm::Group* group, std::unique_ptr<comm::Group>& single_rank) {
  if (group != nullptr) return *group;
  if (single_rank == nullptr) single_rank = comm::make_single_rank();
  return *single_rank;
}

constexpr int64_t kGrainOfMasters = 1 << 15;  // elements that are worth a thread

uint16_t* master_bits(const at::Tensor& x) { return static_cast<uint16_t*>(x.mutable_data_ptr()); }

[[noreturn]] void throw_no_kernel(const at::Tensor& x) {
  throw Error(ErrorKind::kInternal,
              "shard: this build has no kernel for masters in two parts on " + x.device().str());
}

FlatOptions checked(FlatOptions options) {
  if (!options.frozen) return options;
  options.with_gradients = false;
  options.masters = Masters::kNone;
  options.sharded.states = options.sharded.parameters;
  options.sharded.gradients = false;
  options.offload.states = options.offload.parameters;
  return options;
}

}  // namespace

at::Tensor part_of(const at::Tensor& x, const Range& range) {
  return x.defined() ? x.narrow(0, range.begin, range.count) : x;
}

FlatParameters::FlatParameters(const std::vector<Parameter>& parameters, const FlatOptions& options,
                               Groups groups)
    : layout_(parameters, groups.gather == nullptr ? 1 : groups.gather->size()),
      options_(checked(options)),
      groups_(groups),
      side_(options.device) {
  groups_.gather = &or_single_rank(groups.gather, single_rank_);
  groups_.reduce = &or_single_rank(groups.reduce, single_rank_);
  groups_.replicas = &or_single_rank(groups.replicas, single_rank_);
  groups_.stages = &or_single_rank(groups.stages, single_rank_);
  units_.resize(layout_.units().size());
  states_.resize(layout_.units().size());
  for (int unit = 0; unit < num_units(); ++unit) {
    allocate_values(unit);
    if (options_.with_gradients) allocate_gradients(unit);
  }
}

at::TensorOptions FlatParameters::tensor_options(at::ScalarType dtype, bool on_host) const {
  const auto options = at::TensorOptions().dtype(dtype);
  if (!on_host) return options.device(options_.device);
  return options.device(at::kCPU).pinned_memory(options_.device.is_cuda());
}

void FlatParameters::allocate_values(int index) {
  Unit& unit = units_[static_cast<size_t>(index)];
  UnitState& state = states_[static_cast<size_t>(index)];
  const UnitLayout& layout = layout_.units()[static_cast<size_t>(index)];
  const Range whole{0, layout.size};
  const Range held = states_split() ? mine(index) : whole;
  // Whether the compute weights are the masters, or a part of the masters.
  const bool weights_too =
      options_.masters != Masters::kFloat32 || options_.compute_dtype == at::kFloat;
  const at::ScalarType dtype = weights_too ? options_.compute_dtype : at::kFloat;
  const auto value_options = tensor_options(options_.compute_dtype, options_.offload.parameters);
  const bool one_copy = weights_too && options_.offload.states == options_.offload.parameters;
  if (values_transient()) {
    unit.compute_S = at::zeros({held.count}, value_options);
  } else {
    unit.compute_P = at::zeros({whole.count}, value_options);
    unit.compute_S = part_of(unit.compute_P, held);
  }
  state.master_S = one_copy
                       ? unit.compute_S
                       : at::zeros({held.count}, tensor_options(dtype, options_.offload.states));
  if (!one_copy) state.copy_S = unit.compute_S;
  if (options_.masters == Masters::kSplit)
    state.remainder_S =
        at::zeros({held.count}, tensor_options(at::kShort, options_.offload.states));
  state.num_decayed = std::clamp(layout.num_decayed - held.begin, int64_t{0}, held.count);
  unit.ready = !values_transient() && !states_split();
}

void FlatParameters::allocate_gradients(int index) {
  Unit& unit = units_[static_cast<size_t>(index)];
  UnitState& state = states_[static_cast<size_t>(index)];
  const int64_t size = layout_.units()[static_cast<size_t>(index)].size;
  const Range held = states_split() ? mine(index) : Range{0, size};
  const at::ScalarType dtype = options_.gradient_dtype;
  if (!gradients_split()) unit.gradient_P = at::zeros({size}, tensor_options(dtype, false));
  if (gradients_split() || options_.offload.states) {
    state.gradient_S = at::zeros({held.count}, tensor_options(dtype, options_.offload.states));
  } else {
    state.gradient_S = part_of(unit.gradient_P, held);
  }
}

Range FlatParameters::state_range(int unit) const {
  if (states_split()) return mine(unit);
  return {0, layout_.units().at(static_cast<size_t>(unit)).size};
}

Range FlatParameters::master_range(size_t index) const {
  if (states_split()) return layout_.overlap(index, groups_.gather->rank());
  return {0, layout_.places().at(index).num_elements};
}

// The place of this rank's elements of a parameter in its unit's state.
Range FlatParameters::in_state(size_t index) const {
  const Place& place = layout_.places().at(index);
  const Range range = master_range(index);
  if (range.count == 0) return {};
  return {place.offset + range.begin - state_range(place.unit).begin, range.count};
}

at::Tensor FlatParameters::master_part(size_t index) const {
  const Place& place = layout_.places().at(index);
  return part_of(states_[static_cast<size_t>(place.unit)].master_S, in_state(index));
}

void FlatParameters::set_master_part(size_t index, const Range& range, const at::Tensor& values) {
  const Place& place = layout_.places().at(index);
  set_masters(states_[static_cast<size_t>(place.unit)],
              {in_state(index).begin + range.begin, range.count}, values);
}

void FlatParameters::store_master_part(size_t index, int64_t begin, std::span<const float> values) {
  const Place& place = layout_.places().at(index);
  store_masters(states_[static_cast<size_t>(place.unit)], in_state(index).begin + begin, values);
}

at::Tensor FlatParameters::gather_parts(int unit, const at::Tensor& part_S) {
  const at::Tensor all_P = at::empty({layout_.units()[static_cast<size_t>(unit)].size},
                                     tensor_options(part_S.scalar_type(), false));
  groups_.gather->all_gather(all_P, part_S.to(options_.device));
  return all_P;
}

UnitState FlatParameters::gather_masters(int unit) {
  const UnitState& state = states_.at(static_cast<size_t>(unit));
  UnitState whole;
  whole.master_S = state.master_S;
  whole.remainder_S = state.remainder_S;
  if (!states_split() || state.master_S.numel() == 0) return whole;
  whole.master_S = gather_parts(unit, state.master_S);
  // No back end supports int16; a gather computes nothing, so bfloat16 can carry the bits.
  if (state.remainder_S.defined())
    whole.remainder_S = gather_parts(unit, state.remainder_S.view(at::kBFloat16)).view(at::kShort);
  return whole;
}

at::Tensor FlatParameters::view(const at::Tensor& flat_P, size_t index) const {
  const Place& place = layout_.places().at(index);
  return part_of(flat_P, {place.offset, place.num_elements}).view(place.shape);
}

at::Tensor join_masters(const at::Tensor& weight, const at::Tensor& remainder) {
  at::Tensor master = at::empty(weight.sizes(), weight.options().dtype(at::kFloat));
  if (kernels::gpu::join_masters(weight, remainder, master)) return master;
  if (!weight.is_cpu()) throw_no_kernel(weight);
  at::parallel_for(0, master.numel(), kGrainOfMasters, [&](int64_t begin, int64_t end) {
    kernels::join_masters_on_cpu(master_bits(weight) + begin, master_bits(remainder) + begin,
                                 master.mutable_data_ptr<float>() + begin, end - begin);
  });
  return master;
}

void split_masters(const at::Tensor& master, const at::Tensor& weight,
                   const at::Tensor& remainder) {
  if (kernels::gpu::split_masters(master, weight, remainder)) return;
  if (!weight.is_cpu()) throw_no_kernel(weight);
  at::parallel_for(0, master.numel(), kGrainOfMasters, [&](int64_t begin, int64_t end) {
    kernels::split_masters_on_cpu(master.const_data_ptr<float>() + begin,
                                  master_bits(weight) + begin, master_bits(remainder) + begin,
                                  end - begin);
  });
}

at::Tensor masters_of(const UnitState& state, const Range& range) {
  const at::Tensor stored = part_of(state.master_S, range);
  if (state.remainder_S.defined()) return join_masters(stored, part_of(state.remainder_S, range));
  return stored.to(at::kFloat);  // returns a float32 tensor itself
}

void set_masters(const UnitState& state, const Range& range, const at::Tensor& values) {
  const at::Tensor stored = part_of(state.master_S, range);
  if (state.remainder_S.defined()) {
    const at::Tensor here = values.to(stored.device(), at::kFloat).contiguous();
    return split_masters(here, stored, part_of(state.remainder_S, range));
  }
  if (values.data_ptr() != stored.data_ptr()) stored.copy_(values);
}

void read_masters(const UnitState& state, int64_t begin, std::span<float> out) {
  const auto size = static_cast<int64_t>(out.size());
  if (state.master_S.scalar_type() == at::kFloat) {
    std::copy_n(state.master_S.const_data_ptr<float>() + begin, size, out.data());
  } else if (state.remainder_S.defined()) {
    kernels::join_masters_on_cpu(master_bits(state.master_S) + begin,
                                 master_bits(state.remainder_S) + begin, out.data(), size);
  } else {
    at::from_blob(out.data(), {size}).copy_(state.master_S.narrow(0, begin, size));
  }
}

void store_masters(const UnitState& state, int64_t begin, std::span<const float> values) {
  const Range range{begin, static_cast<int64_t>(values.size())};
  const at::Tensor wide = at::from_blob(const_cast<float*>(values.data()), {range.count});
  set_masters(state, range, wide);
  if (state.copy_S.defined() && state.copy_S.is_cpu())
    state.copy_S.narrow(0, begin, range.count).copy_(wide);
}

}  // namespace xffl::shard
