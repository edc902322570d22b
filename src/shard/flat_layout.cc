#include "xffl/shard/flat_layout.h"

#include <algorithm>
#include <numeric>

namespace xffl::shard {
namespace {

constexpr int64_t kAlignment = 64;  // elements

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int num_units(const std::vector<Parameter>& parameters) {
  int count = 0;
  for (const Parameter& parameter : parameters) count = std::max(count, parameter.unit + 1);
  return count;
}

}  // namespace

int64_t Parameter::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

FlatLayout::FlatLayout(const std::vector<Parameter>& parameters, int num_shards)
    : num_shards_(num_shards), places_(parameters.size()) {
  units_.resize(static_cast<size_t>(num_units(parameters)));
  for (const bool decay : {true, false}) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].decay != decay) continue;
      UnitLayout& unit = units_[static_cast<size_t>(parameters[i].unit)];
      const int64_t count = parameters[i].num_elements();
      places_[i] = {parameters[i].unit, unit.size, parameters[i].shape, count};
      const int64_t end = unit.size + count;
      unit.size = round_up(end, kAlignment);
      if (unit.size != end) unit.gaps.push_back({end, unit.size - end});
      if (decay) unit.num_decayed = unit.size;
    }
  }
  for (UnitLayout& unit : units_) {
    const int64_t end = unit.size;
    unit.size = round_up(end, kPieceElements * num_shards);
    if (unit.size != end) unit.gaps.push_back({end, unit.size - end});
  }
}

int64_t FlatLayout::total_size() const {
  int64_t total = 0;
  for (const UnitLayout& unit : units_) total += unit.size;
  return total;
}

Range FlatLayout::shard(int unit, int shard) const {
  const int64_t count = units_.at(static_cast<size_t>(unit)).size / num_shards_;
  return {shard * count, count};
}

Range FlatLayout::overlap(size_t index, int shard_index) const {
  const Place& place = places_.at(index);
  const Range mine = shard(place.unit, shard_index);
  const int64_t begin = std::clamp(mine.begin - place.offset, int64_t{0}, place.num_elements);
  const int64_t end =
      std::clamp(mine.begin + mine.count - place.offset, int64_t{0}, place.num_elements);
  return {begin, end - begin};
}

}  // namespace xffl::shard
