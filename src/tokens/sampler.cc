#include "xffl/tokens/sampler.h"

#include <numeric>
#include <string>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/random.h"

namespace xffl::tokens {
namespace {

// Uniform in 0 .. bound - 1: rejects the lowest (2^64 mod bound) draws, which would bias the
// result.
uint64_t draw_below(SplitMix64& random, uint64_t bound) {
  const uint64_t reject_below = (0 - bound) % bound;
  uint64_t draw = random.next();
  while (draw < reject_below) draw = random.next();
  return draw % bound;
}

}  // namespace

std::vector<uint64_t> permutation(uint64_t n, uint64_t seed, uint64_t epoch) {
  std::vector<uint64_t> order(n);
  std::iota(order.begin(), order.end(), uint64_t{0});
  SplitMix64 random(splitmix64_mix(splitmix64_mix(seed) + epoch));
  for (uint64_t left = n; left > 1; --left) {
    std::swap(order[left - 1], order[draw_below(random, left)]);
  }
  return order;
}

Sampler::Sampler(uint64_t num_sequences, uint64_t batch_size, uint64_t seed, int rank,
                 int world_size)
    : num_sequences_(num_sequences),
      batch_size_(batch_size),
      seed_(seed),
      rank_(rank),
      world_size_(world_size) {
  if (num_sequences == 0) throw Error(ErrorKind::kUsage, "cannot sample from 0 sequences");
  if (batch_size == 0) throw Error(ErrorKind::kUsage, "cannot sample batches of 0 sequences");
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw Error(ErrorKind::kUsage, "cannot sample for rank " + std::to_string(rank) + " of " +
                                       std::to_string(world_size) +
                                       ": a rank is 0 .. world size - 1");
  }
}

std::vector<uint64_t> Sampler::step_indices(uint64_t step) {
  uint64_t begin = 0;
  uint64_t end = 0;
  if (__builtin_mul_overflow(step, batch_size_, &begin) ||
      __builtin_add_overflow(begin, batch_size_, &end)) {
    throw Error(ErrorKind::kUsage, "cannot sample step " + std::to_string(step) +
                                       " of batches of " + std::to_string(batch_size_) +
                                       " sequences: beyond 2^64 sequences");
  }
  return indices(begin, end);
}

std::vector<uint64_t> Sampler::indices(uint64_t begin, uint64_t end) {
  const auto stride = static_cast<uint64_t>(world_size_);
  const uint64_t to_first = (static_cast<uint64_t>(rank_) + stride - begin % stride) % stride;
  std::vector<uint64_t> indices;
  for (uint64_t offset = to_first; offset < end - begin; offset += stride) {
    const uint64_t position = begin + offset;
    const uint64_t epoch = position / num_sequences_;
    if (!last_ || last_->number != epoch)
      last_ = Epoch{epoch, permutation(num_sequences_, seed_, epoch)};
    indices.push_back(last_->order[position % num_sequences_]);
  }
  return indices;
}

}  // namespace xffl::tokens
