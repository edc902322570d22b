// The data sampler: seeded sampling without replacement, disjoint between ranks.
//
// SplitMix64 draws a global order for each epoch from (seed, epoch), identical on every machine and
// standard library. Position p of a federation-long stream is sequence order_{p / N}(p mod N). Step
// s of a job takes positions [s * batch_size, (s + 1) * batch_size); rank r takes the positions
// congruent to r modulo world_size. So the global batch of a step does not depend on the world
// size, and a job with first step `first_step` continues where the previous round ended.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace xffl::tokens {

/// A permutation of 0 .. n-1 drawn from (seed, epoch): Fisher-Yates over SplitMix64
/// (base/random.h).
std::vector<uint64_t> permutation(uint64_t n, uint64_t seed, uint64_t epoch);

class Sampler {
 public:
  /// Throws kUsage unless `num_sequences` (over all shards) >= 1, 0 <= rank < world_size and
  /// batch_size >= 1.
  Sampler(uint64_t num_sequences, uint64_t batch_size, uint64_t seed, int rank, int world_size);

  /// This rank's sequence indices of optimizer step `step`, in order of position. When batch_size
  /// is not a multiple of world_size, the counts of two ranks differ by at most one (a count may be
  /// 0). Not thread-safe: the sampler caches the order of the last epoch.
  std::vector<uint64_t> step_indices(uint64_t step);
  /// As step_indices(), of the positions [begin, end).
  std::vector<uint64_t> indices(uint64_t begin, uint64_t end);

 private:
  uint64_t num_sequences_, batch_size_, seed_;
  int rank_, world_size_;
  struct Epoch {
    uint64_t number;
    std::vector<uint64_t> order;
  };
  std::optional<Epoch> last_;
};

}  // namespace xffl::tokens
