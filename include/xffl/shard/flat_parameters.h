// Parameters, gradients and their copies in the compute dtype, each in one flat buffer per unit.
//
// A unit (the embedding, a block, the head) is what later is sharded, gathered and offloaded; today
// every rank holds all of it: data parallelism. Masters and gradients are float32. In a narrower
// compute dtype the model reads a copy that is refreshed after each step; in float32 it reads the
// masters themselves. Within a buffer the decayed parameters come first; each parameter begins at a
// multiple of 64 elements and the gaps stay zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "xffl/comm/group.h"

namespace xffl::shard {

struct Parameter {
  std::vector<int64_t> shape;
  int unit = 0;        // 0, 1, ... without gaps
  bool decay = false;  // weight decay applies
};

struct FlatOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  bool with_gradients = true;
};

/// The buffers of one unit: P elements each.
struct FlatUnit {
  at::Tensor master_P;
  at::Tensor gradient_P;    // undefined without gradients
  at::Tensor compute_P;     // master_P itself in float32
  int64_t num_decayed = 0;  // elements [0, num_decayed) decay
};

class FlatParameters {
 public:
  FlatParameters(const std::vector<Parameter>& parameters, const FlatOptions& options);

  size_t size() const { return places_.size(); }
  /// Views of the buffers, in the order of the constructor's parameters.
  at::Tensor master(size_t index) const;
  at::Tensor gradient(size_t index) const;
  at::Tensor compute(size_t index) const;
  const std::vector<FlatUnit>& units() const { return units_; }

  /// Brings the compute copies up to the masters; nothing in float32.
  void refresh_compute();

  /// Sums the gradients over ranks, unit by unit.
  void reduce_gradients(comm::Group& group);
  /// The L2 norm of all gradients together, accumulated in float64.
  double gradient_norm() const;
  void scale_gradients(double factor);

 private:
  struct Place {
    int unit;
    int64_t offset;
    std::vector<int64_t> shape;
  };
  at::Tensor view(const at::Tensor& flat_P, const Place& place) const;

  std::vector<Place> places_;
  std::vector<FlatUnit> units_;
};

}  // namespace xffl::shard
