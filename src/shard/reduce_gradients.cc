// The gradients of FlatParameters: their reduction over the ranks, during backward (ZeRO-2) or
// after it, and their norm.
//
// P elements of a unit's flat buffer, S elements of a rank's shard of the buffer, W ranks of the
// shard group, C elements of one piece of a norm.
#include <ATen/Parallel.h>
#include <torch/types.h>

#include "xffl/kernels/cpu/optimizer.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/shard/flat_parameters.h"

namespace xffl::shard {
namespace {

// The number of concurrent reductions: the ranks exchange one while backward fills the next.
constexpr size_t kMaxReductions = 2;

// The sum of squares of each row, in float64.
at::Tensor square_sums(const at::Tensor& pieces_CE) {
  at::Tensor sums_C = at::empty({pieces_CE.size(0)}, pieces_CE.options().dtype(at::kDouble));
  if (kernels::gpu::square_sums(sums_C, pieces_CE)) return sums_C;
  if (pieces_CE.scalar_type() != at::kBFloat16 || !pieces_CE.is_cpu())
    return sums_C.copy_(at::linalg_vector_norm(pieces_CE, 2, at::IntArrayRef{1})).square_();
  const auto* bits = static_cast<const uint16_t*>(pieces_CE.const_data_ptr());
  at::parallel_for(0, pieces_CE.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece)
      sums_C.mutable_data_ptr<double>()[piece] =
          kernels::square_sum_on_cpu(bits + piece * kPieceElements, kPieceElements);
  });
  return sums_C;
}

}  // namespace

void FlatParameters::begin_step() {
  for (Unit& unit : units_) unit.has_gradient = unit.gradient_sent = false;
}

bool FlatParameters::open_gradients(int index) {
  Unit& unit = units_.at(static_cast<size_t>(index));
  if (!gradients_split()) return !unit.has_gradient;
  const UnitLayout& layout = layout_.units()[static_cast<size_t>(index)];
  unit.gradient_P =
      gradients_pool_.take(layout.size, tensor_options(options_.gradient_dtype, false));
  for (const Range& gap : layout.gaps) part_of(unit.gradient_P, gap).zero_();
  return true;
}

void FlatParameters::close_gradients(int index) {
  Unit& unit = units_.at(static_cast<size_t>(index));
  if (layout_.units()[static_cast<size_t>(index)].size == 0) return;
  const bool add = unit.has_gradient;
  unit.has_gradient = true;
  if (!gradients_split()) {
    if (!last_micro_batch_) return;
    if (!is_split()) {
      if (options_.offload.states) start_copy_to_host(index, unit.gradient_P);
      return;
    }
    reductions_.push_back({groups_.reduce->start_reduce_scatter(
                               part_of(unit.gradient_P, mine(index)), unit.gradient_P),
                           index,
                           {},
                           {}});
    return limit_reductions();
  }
  const at::Tensor& gradient_S = states_[static_cast<size_t>(index)].gradient_S;
  Reduction reduction{{}, index, std::move(unit.gradient_P), {}, add};
  unit.gradient_P.reset();
  const bool direct = !add && !options_.offload.states;
  if (!direct) reduction.part_S = at::empty_like(gradient_S, options_.device);
  reduction.pending = groups_.reduce->start_reduce_scatter(direct ? gradient_S : reduction.part_S,
                                                           reduction.source_P);
  reductions_.push_back(std::move(reduction));
  limit_reductions();
}

// Over Gloo each reduction receives a whole unit in its own buffer.
void FlatParameters::limit_reductions() {
  if (reductions_.size() < kMaxReductions) return;
  finish_reduction(std::move(reductions_.front()));
  reductions_.pop_front();
}

void FlatParameters::finish_reduction(Reduction reduction) {
  reduction.pending.wait();
  if (reduction.source_P.defined()) gradients_pool_.give(std::move(reduction.source_P));
  if (!reduction.part_S.defined()) return;
  if (!reduction.add && options_.offload.states)
    return start_copy_to_host(reduction.unit, reduction.part_S);
  at::Tensor gradient_S = states_[static_cast<size_t>(reduction.unit)].gradient_S;
  SideStream::synchronize(gradients_arrived_);  // the addend on the host
  gradient_S.add_(reduction.part_S.to(gradient_S.device()));
}

// The copy starts after the work that computed the gradient, and runs beside later work of the
// device. finish_gradients() waits for the copy.
void FlatParameters::start_copy_to_host(int index, const at::Tensor& gradient) {
  at::Tensor gradient_S = states_[static_cast<size_t>(index)].gradient_S;
  gradients_arrived_ = side_.run([&] { gradient_S.copy_(gradient, true); });
  side_.keep(gradient);
  units_[static_cast<size_t>(index)].gradient_sent = true;
}

at::Tensor FlatParameters::gradient(size_t index) const {
  return view(units_[static_cast<size_t>(layout_.places().at(index).unit)].gradient_P, index);
}

void FlatParameters::sum_over_replicas(at::Tensor gradient_S) {
  if (groups_.replicas->size() == 1) return;
  // Round a 16-bit sum once, not for each group.
  const at::Tensor sum_S = gradient_S.to(options_.device, at::kFloat);
  groups_.replicas->all_reduce(sum_S);
  if (!sum_S.is_alias_of(gradient_S)) gradient_S.copy_(sum_S);
}

void FlatParameters::finish_gradients() {
  while (!reductions_.empty()) {
    finish_reduction(std::move(reductions_.front()));
    reductions_.pop_front();
  }
  for (int index = 0; index < num_units(); ++index) {
    const Unit& unit = units_[static_cast<size_t>(index)];
    if (layout_.units()[static_cast<size_t>(index)].size == 0) continue;  // a unit of another stage
    const at::Tensor& gradient_S = states_[static_cast<size_t>(index)].gradient_S;
    if (gradient_S.numel() == 0) continue;
    if (is_split() && !states_split())
      groups_.reduce->all_gather(unit.gradient_P, part_of(unit.gradient_P, mine(index)));
    if (options_.offload.states && !gradients_split() && !unit.gradient_sent)
      start_copy_to_host(index,
                         states_split() ? part_of(unit.gradient_P, mine(index)) : unit.gradient_P);
  }
  SideStream::synchronize(gradients_arrived_);
  for (const UnitState& state : states_)
    if (state.gradient_S.numel() > 0) sum_over_replicas(state.gradient_S);
}

at::Tensor FlatParameters::gradient_square_sum() const {
  std::vector<at::Tensor> pieces;
  for (const UnitState& state : states_) {
    const at::Tensor pieces_CE = state.gradient_S.view({-1, kPieceElements});
    pieces.push_back(square_sums(pieces_CE));
  }
  if (!states_split()) return sum_over_units(pieces);
  const at::Tensor local = at::cat(pieces);
  const at::Tensor all =
      at::empty({groups_.gather->size() * local.numel()}, local.options().device(options_.device));
  groups_.gather->all_gather(all, local.to(options_.device));
  // Puts the sums of pieces in the same order as for whole buffers.
  const at::Tensor all_WN = all.view({groups_.gather->size(), -1});
  std::vector<at::Tensor> ordered;
  int64_t begin = 0;
  for (const at::Tensor& piece : pieces) {
    ordered.push_back(all_WN.narrow(1, begin, piece.numel()).reshape({-1}));
    begin += piece.numel();
  }
  return sum_over_units(ordered);
}

// One stage holds the elements of a unit, and the other stages add 0: the addition is exact.
at::Tensor FlatParameters::sum_over_units(const std::vector<at::Tensor>& squares_C) const {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& unit_C : squares_C) sums.push_back(unit_C.sum());
  const at::Tensor sums_U = at::stack(sums).to(options_.device);
  groups_.stages->all_reduce(sums_U);
  return sums_U.sum();
}

}  // namespace xffl::shard
