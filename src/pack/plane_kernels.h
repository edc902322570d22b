// Conversion between words and byte planes, selected at run time for this CPU.
#pragma once

#include <cstddef>
#include <vector>

namespace xffl::pack {

/// Loops over n words for one instruction set; buffers may be unaligned and never overlap.
struct PlaneKernels {
  const char* name;
  void (*split_difference)(const std::byte* words, const std::byte* reference, std::byte* low,
                           std::byte* high, size_t n);
  void (*join_difference)(const std::byte* low, const std::byte* high, const std::byte* reference,
                          std::byte* words, size_t n);
  void (*split_words)(const std::byte* words, std::byte* low, std::byte* high, size_t n);
  void (*join_words)(const std::byte* low, const std::byte* high, std::byte* words, size_t n);
};

/// The sets that this CPU supports: the portable set first, the fastest last.
const std::vector<PlaneKernels>& plane_kernels();

/// The loops compiled for the compiler's base target.
PlaneKernels portable_planes();

}  // namespace xffl::pack
