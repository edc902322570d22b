#include "master_stream.h"

#include <torch/types.h>

#include <algorithm>

namespace xffl::train {

MasterStream::MasterStream(const LoadedModel& model, comm::Group& world, Pipeline& pipeline,
                           at::Device device)
    : model_(model),
      world_(world),
      pipeline_(pipeline),
      device_(device),
      layout_(flat_parameters_of(model.specs), model.parameters->layout().num_shards()) {}

// The unit's masters; rank 0 also receives the units of other stages.
shard::UnitState MasterStream::gather(int unit) {
  const auto holds_unit = [&](const UnitRange& units) {
    return unit >= units.first && unit < units.end;
  };
  const auto stage = static_cast<int>(
      std::find_if(model_.stages.begin(), model_.stages.end(), holds_unit) - model_.stages.begin());
  shard::UnitState whole;
  if (stage == pipeline_.stage()) whole = model_.parameters->gather_stored_masters(unit);
  if (stage == 0 || pipeline_.data().rank() != 0) return whole;
  if (stage == pipeline_.stage()) {
    const at::Tensor flat_P = shard::masters_of(whole, {0, whole.master_S.numel()});
    pipeline_.stages().start_send(flat_P.to(device_), 0).wait();
  } else if (pipeline_.is_first()) {
    whole.master_S = at::empty({layout_.units()[static_cast<size_t>(unit)].size},
                               at::TensorOptions().dtype(at::kFloat).device(device_));
    pipeline_.stages().start_receive(whole.master_S, stage).wait();
  }
  return whole;
}

void MasterStream::gather_up_to(int unit) {
  while (unit_ < unit) {
    whole_ = {};  // frees the unit before the next one is gathered
    // Waits for rank 0 outside of collectives: writing may exceed their timeout, and on a GPU
    // c10d's watchdog counts from the start of a collective.
    world_.wait_for_first();
    whole_ = gather(++unit_);
  }
}

llama::Values MasterStream::values(size_t index, at::ScalarType dtype) {
  const shard::Place& place = layout_.places().at(index);
  gather_up_to(place.unit);
  llama::Values values;
  if (whole_.master_S.is_cpu()) {
    values.read = [this, offset = place.offset](int64_t begin, std::span<float> out) {
      shard::read_masters(whole_, offset + begin, out);
    };
    return values;
  }
  if (whole_.remainder_S.defined() || whole_.master_S.scalar_type() != at::kFloat) {
    shard::UnitState wide;
    wide.master_S = shard::masters_of(whole_, {0, whole_.master_S.numel()});
    whole_ = wide;
  }
  if (!window_) window_.emplace(whole_.master_S.device());
  window_->open(whole_.master_S.narrow(0, place.offset, place.num_elements), dtype);
  values.prepare = [this](int64_t begin, int64_t count) { window_->prepare(begin, count); };
  values.read = [this](int64_t begin, std::span<float> out) { window_->read(begin, out); };
  return values;
}

void MasterStream::finish() { gather_up_to(model_.parameters->num_units() - 1); }

}  // namespace xffl::train
