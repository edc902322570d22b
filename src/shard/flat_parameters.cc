// P elements of a unit's flat buffer, C elements of one piece of a norm.
#include "xffl/shard/flat_parameters.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace xffl::shard {
namespace {

constexpr int64_t kAlignment = 64;    // elements
constexpr int64_t kNormPiece = 4096;  // elements that a norm sums in float32

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t num_elements(const Parameter& parameter) {
  int64_t product = 1;
  for (const int64_t size : parameter.shape) product *= size;
  return product;
}

int num_units(const std::vector<Parameter>& parameters) {
  int count = 0;
  for (const Parameter& parameter : parameters) count = std::max(count, parameter.unit + 1);
  return count;
}

}  // namespace

FlatParameters::FlatParameters(const std::vector<Parameter>& parameters,
                               const FlatOptions& options) {
  units_.resize(static_cast<size_t>(num_units(parameters)));
  places_.resize(parameters.size());
  std::vector<int64_t> ends(units_.size(), 0);
  for (const bool decay : {true, false}) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].decay != decay) continue;
      int64_t& end = ends[static_cast<size_t>(parameters[i].unit)];
      places_[i] = {parameters[i].unit, end, parameters[i].shape};
      end = round_up(end + num_elements(parameters[i]), kAlignment);
      if (decay) units_[static_cast<size_t>(parameters[i].unit)].num_decayed = end;
    }
  }
  const auto float32 = at::TensorOptions().device(options.device).dtype(at::kFloat);
  for (size_t u = 0; u < units_.size(); ++u) {
    const int64_t size = round_up(ends[u], kNormPiece);
    units_[u].master_P = at::zeros({size}, float32);
    if (options.with_gradients) units_[u].gradient_P = at::zeros({size}, float32);
    units_[u].compute_P = options.compute_dtype == at::kFloat
                              ? units_[u].master_P
                              : at::zeros({size}, float32.dtype(options.compute_dtype));
  }
}

at::Tensor FlatParameters::view(const at::Tensor& flat_P, const Place& place) const {
  int64_t count = 1;
  for (const int64_t size : place.shape) count *= size;
  return flat_P.narrow(0, place.offset, count).view(place.shape);
}

at::Tensor FlatParameters::master(size_t index) const {
  const Place& place = places_.at(index);
  return view(units_[static_cast<size_t>(place.unit)].master_P, place);
}

at::Tensor FlatParameters::gradient(size_t index) const {
  const Place& place = places_.at(index);
  return view(units_[static_cast<size_t>(place.unit)].gradient_P, place);
}

at::Tensor FlatParameters::compute(size_t index) const {
  const Place& place = places_.at(index);
  return view(units_[static_cast<size_t>(place.unit)].compute_P, place);
}

void FlatParameters::refresh_compute() {
  for (FlatUnit& unit : units_) {
    if (!unit.compute_P.is_same(unit.master_P)) unit.compute_P.copy_(unit.master_P);
  }
}

void FlatParameters::reduce_gradients(comm::Group& group) {
  for (FlatUnit& unit : units_) group.all_reduce(unit.gradient_P);
}

double FlatParameters::gradient_norm() const {
  double square_sum = 0;
  for (const FlatUnit& unit : units_) {
    const at::Tensor norms_C =
        at::linalg_vector_norm(unit.gradient_P.view({-1, kNormPiece}), 2, at::IntArrayRef{1});
    square_sum += norms_C.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(square_sum);
}

void FlatParameters::scale_gradients(double factor) {
  for (FlatUnit& unit : units_) unit.gradient_P.mul_(factor);
}

}  // namespace xffl::shard
