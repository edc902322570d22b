// Words to byte planes and back, for the processor that runs this.
#pragma once

#include <cstddef>
#include <vector>

namespace xffl::pack {

/// One set of loops over n words; buffers may be unaligned and never overlap.
struct PlaneKernels {
  const char* name;
  void (*split_difference)(const std::byte* words, const std::byte* reference, std::byte* low,
                           std::byte* high, size_t n);
  void (*join_difference)(const std::byte* low, const std::byte* high, const std::byte* reference,
                          std::byte* words, size_t n);
  void (*split_words)(const std::byte* words, std::byte* low, std::byte* high, size_t n);
  void (*join_words)(const std::byte* low, const std::byte* high, std::byte* words, size_t n);
};

/// What this processor can run, the portable one first, the fastest last.
const std::vector<PlaneKernels>& plane_kernels();

/// The loops as the compiler's base target runs them.
PlaneKernels portable_planes();

}  // namespace xffl::pack
