// XXH3 (64 bits, seed 0): detects accidental damage at the speed of memory. Not cryptographic: a
// SHA-256 protects against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace xffl {

uint64_t fast_hash(std::span<const std::byte> bytes);

/// The same hash of bytes that arrive in pieces.
class FastHash {
 public:
  FastHash();
  FastHash(const FastHash& other);
  FastHash& operator=(const FastHash& other);
  FastHash(FastHash&&) noexcept;
  FastHash& operator=(FastHash&&) noexcept;
  ~FastHash();

  void update(std::span<const std::byte> bytes);
  uint64_t value() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl
