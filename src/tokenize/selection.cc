#include "selection.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>

#include "xffl/base/sha256.h"

namespace xffl::tokenize {

uint64_t selection_hash(uint64_t seed, std::string_view text) {
  Sha256 hasher;
  hasher.update(std::bit_cast<std::array<std::byte, sizeof seed>>(seed));
  hasher.update(text);
  const std::string hex = hasher.hex();
  uint64_t hash = 0;
  std::from_chars(hex.data(), hex.data() + 16, hash, 16);
  // The largest value is given up, so that "below a bound" can mean every hash.
  return hash == UINT64_MAX ? 0 : hash;
}

uint64_t selection_bound(double fraction) {
  if (fraction >= 1.0) return UINT64_MAX;
  return static_cast<uint64_t>(std::ldexp(fraction, 64));
}

void SmallestHashes::add(uint64_t hash) {
  if (kept_.contains(hash)) return;
  if (kept_.size() == count_) {
    overflowed_ = true;
    if (count_ == 0 || hash > largest_first_.top()) return;
    kept_.erase(largest_first_.top());
    largest_first_.pop();
  }
  kept_.insert(hash);
  largest_first_.push(hash);
}

}  // namespace xffl::tokenize
