// P elements of a unit's flat buffer, S of a rank's shard of it. Gradients are in
// flat_gradients.cc.
#include "xffl/shard/flat_parameters.h"

#include <torch/types.h>

#include <algorithm>

namespace xffl::shard {
namespace {

comm::Group& or_single_rank(comm::Group* group, std::unique_ptr<comm::Group>& single_rank) {
  if (group != nullptr) return *group;
  if (single_rank == nullptr) single_rank = comm::make_single_rank();
  return *single_rank;
}

at::Tensor part(const at::Tensor& flat, const Range& range) {
  return flat.narrow(0, range.begin, range.count);
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

at::Tensor FlatParameters::Pool::take(int64_t size, const at::TensorOptions& options) {
  const auto found = std::find_if(spare_.begin(), spare_.end(),
                                  [&](const at::Tensor& one) { return one.numel() == size; });
  if (found == spare_.end()) return at::empty({size}, options);
  const at::Tensor buffer = std::move(*found);
  spare_.erase(found);
  return buffer;
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
    unit.compute_S = part(unit.compute_P, held);
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
    state.gradient_S = part(unit.gradient_P, held);
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
  return part(states_[static_cast<size_t>(place.unit)].master_S, in_state(index));
}

void FlatParameters::set_master_part(size_t index, const at::Tensor& values) {
  const Place& place = layout_.places().at(index);
  set_masters(states_[static_cast<size_t>(place.unit)], in_state(index), values);
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

UnitState FlatParameters::gather_stored_masters(int unit) {
  const UnitState& state = states_.at(static_cast<size_t>(unit));
  UnitState whole;
  whole.master_S = state.master_S;
  whole.remainder_S = state.remainder_S;
  if (!states_split() || state.master_S.numel() == 0) return whole;
  whole.master_S = gather_parts(unit, state.master_S);
  // No back end has int16; a gather computes nothing.
  if (state.remainder_S.defined())
    whole.remainder_S = gather_parts(unit, state.remainder_S.view(at::kBFloat16)).view(at::kShort);
  return whole;
}

at::Tensor FlatParameters::gather_masters(int unit) {
  const UnitState whole = gather_stored_masters(unit);
  return masters_of(whole, {0, whole.master_S.numel()});
}

at::Tensor FlatParameters::view(const at::Tensor& flat_P, size_t index) const {
  const Place& place = layout_.places().at(index);
  return part(flat_P, {place.offset, place.num_elements}).view(place.shape);
}

// Copies from the host run beside the work of the previous unit. At the time of the call the
// current stream has finished with their buffer.
void FlatParameters::start_gather(Unit& unit) {
  const auto index = static_cast<size_t>(&unit - units_.data());
  const int64_t size = layout_.units()[index].size;
  if (!unit.compute_P.defined())
    unit.compute_P = values_pool_.take(size, tensor_options(options_.compute_dtype, false));
  unit.gathering_started = true;
  if (unit.compute_S.numel() == size) {  // whole, on the host
    unit.arrived = side_.run([&] { unit.compute_P.copy_(unit.compute_S, true); });
    return;
  }
  unit.gather_source = unit.compute_S;
  if (unit.compute_S.device() == options_.device) {
    unit.gathering = groups_.gather->start_all_gather(unit.compute_P, unit.gather_source);
    return;
  }
  unit.gather_source = at::empty_like(unit.compute_S, options_.device);
  unit.arrived = side_.run([&] {
    unit.gather_source.copy_(unit.compute_S, true);
    unit.gathering = groups_.gather->start_all_gather(unit.compute_P, unit.gather_source);
  });
}

void FlatParameters::prefetch(int index) {
  Unit& unit = units_.at(static_cast<size_t>(index));
  if (!unit.ready && !unit.gathering_started) start_gather(unit);
}

void FlatParameters::gather(int index) {
  prefetch(index);
  Unit& unit = units_[static_cast<size_t>(index)];
  side_.wait(unit.arrived);
  unit.arrived.reset();
  unit.gathering.wait();
  unit.gather_source.reset();
  unit.gathering_started = false;
  unit.ready = true;
}

void FlatParameters::release(int index) {
  Unit& unit = units_.at(static_cast<size_t>(index));
  if (!values_transient() || !unit.ready) return;
  values_pool_.give(std::move(unit.compute_P));
  unit.compute_P.reset();
  unit.ready = false;
}

at::Tensor FlatParameters::compute(size_t index) const {
  return view(units_[static_cast<size_t>(layout_.places().at(index).unit)].compute_P, index);
}

void FlatParameters::finish_gathers() {
  for (int index = 0; index < num_units(); ++index) {
    const Unit& unit = units_[static_cast<size_t>(index)];
    if (!unit.gathering_started) continue;
    SideStream::synchronize(unit.arrived);  // the host may overwrite the source next
    gather(index);
  }
}

bool FlatParameters::copies_on_host() const {
  return std::all_of(states_.begin(), states_.end(), [](const UnitState& state) {
    return state.master_S.is_cpu() && (!state.copy_S.defined() || state.copy_S.is_cpu());
  });
}

void FlatParameters::refresh_compute(bool copies_are_fresh) {
  finish_gathers();
  for (int index = 0; index < num_units(); ++index) {
    Unit& unit = units_[static_cast<size_t>(index)];
    const at::Tensor& master_S = states_[static_cast<size_t>(index)].master_S;
    if (!copies_are_fresh && !unit.compute_S.is_same(master_S))
      unit.compute_S.copy_(master_S, true);
    release(index);
    if (states_split()) unit.ready = false;
  }
}

}  // namespace xffl::shard
