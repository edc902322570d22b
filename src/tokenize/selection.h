// Seeded choices that depend only on a text: neither on the text's place nor on the threads or the
// machine.
#pragma once

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "xffl/base/sha256.h"

namespace xffl::tokenize {

/// 64 bits of SHA-256 over (seed, text); never UINT64_MAX, so that some bound is above every hash.
inline uint64_t selection_hash(uint64_t seed, std::string_view text) {
  Sha256 hasher;
  hasher.update(std::bit_cast<std::array<std::byte, sizeof seed>>(seed));
  hasher.update(text);
  const std::string hex = hasher.hex();
  uint64_t hash = 0;
  std::from_chars(hex.data(), hex.data() + 16, hash, 16);
  return hash == UINT64_MAX ? 0 : hash;
}

/// A hash is below this bound with probability `fraction` (0 .. 1).
inline uint64_t selection_bound(double fraction) {
  return fraction >= 1.0 ? UINT64_MAX : static_cast<uint64_t>(std::ldexp(fraction, 64));
}

}  // namespace xffl::tokenize
