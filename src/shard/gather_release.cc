// The values of FlatParameters' units. The functions gather values before a unit's work, free them
// after the work (ZeRO-3), and refresh them after a step.
#include <torch/types.h>

#include <algorithm>

#include "xffl/shard/flat_parameters.h"

namespace xffl::shard {

at::Tensor FlatParameters::Pool::take(int64_t size, const at::TensorOptions& options) {
  const auto found = std::find_if(spare_.begin(), spare_.end(),
                                  [&](const at::Tensor& one) { return one.numel() == size; });
  if (found == spare_.end()) return at::empty({size}, options);
  const at::Tensor buffer = std::move(*found);
  spare_.erase(found);
  return buffer;
}

// Copies from the host run beside the work of the previous unit. At the time of the call the
// current stream has finished with the copies' buffer.
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
    SideStream::synchronize(unit.arrived);  // the host may overwrite the source afterwards
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
