// Byte-pair merges: which two neighbours become one, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace xffl::tokenize {

struct Merge {
  uint32_t left = 0;
  uint32_t right = 0;
  uint32_t merged = 0;
};

/// Thread-safe.
class BpeMerges {
 public:
  /// In order of rank; of equal pairs the last counts, as in HF's table.
  explicit BpeMerges(const std::vector<Merge>& merges);

  /// Merges neighbours in `symbols` until no pair has a merge: always the pair of the lowest rank,
  /// of equal ones the leftmost. n^2 steps for a few symbols, n log n for many.
  void apply(std::vector<uint32_t>& symbols) const;

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t rank = kNone;
    uint32_t merged = 0;
  };
  static constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();
  static uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  size_t slot_of(uint64_t pair) const;
  const Slot& find(uint32_t left, uint32_t right) const;
  void apply_to_few(std::vector<uint32_t>& symbols) const;
  void apply_to_many(std::vector<uint32_t>& symbols) const;

  std::vector<Slot> slots_;  // open addressing, at most half full
  int shift_ = 0;
};

}  // namespace xffl::tokenize
