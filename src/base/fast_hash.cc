#include "xffl/base/fast_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "xffl/base/error.h"

namespace xffl {

struct FastHash::State {
  XXH3_state_t xxh3;
};

uint64_t fast_hash(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

FastHash::FastHash() : state_(std::make_unique<State>()) { reset(); }
FastHash::FastHash(const FastHash& other) : state_(std::make_unique<State>(*other.state_)) {}
FastHash& FastHash::operator=(const FastHash& other) {
  *state_ = *other.state_;
  return *this;
}
FastHash::FastHash(FastHash&&) noexcept = default;
FastHash& FastHash::operator=(FastHash&&) noexcept = default;
FastHash::~FastHash() = default;

void FastHash::update(std::span<const std::byte> bytes) {
  if (XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size()) != XXH_OK)
    throw Error(ErrorKind::kInternal, "XXH3 failed");
}

uint64_t FastHash::value() const { return XXH3_64bits_digest(&state_->xxh3); }

void FastHash::reset() {
  if (XXH3_64bits_reset(&state_->xxh3) != XXH_OK) throw Error(ErrorKind::kInternal, "XXH3 failed");
}

}  // namespace xffl
