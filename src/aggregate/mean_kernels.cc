#include "mean_kernels.h"

#include <array>

namespace xffl::aggregate {

void round_to(std::span<const double> from, checkpoint::Dtype dtype, std::span<std::byte> to) {
  std::array<float, kMaxPiece> rounded;
  if (dtype == checkpoint::Dtype::kF32)
    kernels::round_to_nearest(from, rounded);
  else
    kernels::round_to_odd(from, rounded);
  checkpoint::from_float(std::span(rounded.data(), from.size()), dtype, to);
}

}  // namespace xffl::aggregate
