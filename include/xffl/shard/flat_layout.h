// The place of each parameter in its unit's flat buffer, and the part of the buffer that a rank
// holds.
//
// The trainer shards, gathers and offloads a unit (the embedding, a block, the head) as a whole.
// Within a buffer the decayed parameters come first, each parameter begins at a multiple of 64
// elements, and the gaps are zero. Padding makes every rank's shard a whole number of pieces of
// kPieceElements: sums over pieces then do not depend on the sharding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xffl::shard {

inline constexpr int64_t kPieceElements = 4096;

struct Parameter {
  std::vector<int64_t> shape;
  int unit = 0;        // 0, 1, ... without gaps
  bool decay = false;  // weight decay applies

  int64_t num_elements() const;
};

/// Elements [begin, begin + count).
struct Range {
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const Range&) const = default;
};

struct Place {
  int unit = 0;
  int64_t offset = 0;  // in the unit's buffer
  std::vector<int64_t> shape;
  int64_t num_elements = 0;
};

struct UnitLayout {
  int64_t size = 0;         // elements of the buffer
  int64_t num_decayed = 0;  // weight decay applies to elements [0, num_decayed)
  std::vector<Range> gaps;  // between parameters, and after the last
};

class FlatLayout {
 public:
  /// The layout for `num_shards` >= 1 shards of each unit.
  FlatLayout(const std::vector<Parameter>& parameters, int num_shards);

  int num_shards() const { return num_shards_; }
  const std::vector<Place>& places() const { return places_; }
  const std::vector<UnitLayout>& units() const { return units_; }
  int64_t total_size() const;

  /// Part `shard` of a unit's buffer.
  Range shard(int unit, int shard) const;
  /// The elements of parameter `index` (counted from the parameter's beginning) in part `shard`.
  Range overlap(size_t index, int shard) const;

 private:
  int num_shards_;
  std::vector<Place> places_;
  std::vector<UnitLayout> units_;
};

}  // namespace xffl::shard
