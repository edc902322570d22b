// Seeded choices that depend on a text alone: not on its place, the threads or the machine.
#pragma once

#include <cstdint>
#include <queue>
#include <string_view>
#include <unordered_set>

namespace xffl::tokenize {

/// 64 bits of SHA-256 over (seed, text).
uint64_t selection_hash(uint64_t seed, std::string_view text);

/// The bound under which a hash lies with probability `fraction` (0 .. 1).
uint64_t selection_bound(double fraction);

/// Keeps the `count` smallest distinct hashes it is shown.
class SmallestHashes {
 public:
  explicit SmallestHashes(uint64_t count) : count_(count) {}

  void add(uint64_t hash);
  /// More distinct hashes were added than are kept.
  bool overflowed() const { return overflowed_; }
  uint64_t size() const { return largest_first_.size(); }
  /// The bound under which exactly the kept ones lie; for size() >= 1.
  uint64_t bound() const { return largest_first_.top() + 1; }

 private:
  uint64_t count_;
  bool overflowed_ = false;
  std::priority_queue<uint64_t> largest_first_;
  std::unordered_set<uint64_t> kept_;
};

}  // namespace xffl::tokenize
