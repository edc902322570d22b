// The directions of updates, measured while their mean is computed.
//
// One pass gives <d_k, m>, <d_k, d_k> and <m, m> for the updates d_k and their weighted mean m,
// which suffice for the angle between each update and the weighted sum of the others. The cost
// grows with the number of updates, not with the number of pairs.
#pragma once

#include <span>
#include <vector>

#include "sources.h"

namespace xffl::aggregate {

class Directions {
 public:
  explicit Directions(const Sources& updates);

  size_t num_sums() const { return sums_.size(); }

  /// Adds the sums of a piece of a block, with the mean of the piece, to `sums`. Any thread.
  void measure(const Sources::Reader& reader, uint64_t offset, std::span<const double> mean,
               std::span<double> sums) const;
  /// Takes the sums of the next block. The order of the calls decides the last bits of the result.
  void add(std::span<const double> sums);

  /// For each update, in the order of the sources: Stepped::cosines.
  std::vector<double> cosines() const;

 private:
  const Sources& updates_;
  std::vector<double> sums_;  // <d_k, m> and <d_k, d_k> of each update, then <m, m>
};

}  // namespace xffl::aggregate
