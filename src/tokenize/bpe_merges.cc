// How it works: few symbols are scanned for the best pair again and again, which needs no memory
// but theirs. Many are a linked list with a heap of candidates; a candidate whose pair has changed
// since is passed over when its turn comes.
#include "bpe_merges.h"

#include <array>
#include <bit>
#include <queue>
#include <utility>

namespace xffl::tokenize {
namespace {

constexpr size_t kFew = 48;

struct Candidate {
  uint32_t rank;
  uint32_t at;
  uint32_t left, right, merged;

  // The top of the heap is the lowest rank, of equal ones the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

BpeMerges::BpeMerges(const std::vector<Merge>& merges) {
  const size_t size = std::bit_ceil(2 * merges.size() + 2);
  shift_ = 64 - std::countr_zero(size);
  slots_.resize(size);
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    slots_[slot_of(pair)] = {pair, rank, merges[rank].merged};
  }
}

// The slot that holds `pair`, or the empty one where it would be.
inline size_t BpeMerges::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t at = pair * 0x9e3779b97f4a7c15u >> shift_;
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & mask;
  return at;
}

inline const BpeMerges::Slot& BpeMerges::find(uint32_t left, uint32_t right) const {
  return slots_[slot_of(pair_of(left, right))];
}

void BpeMerges::apply(std::vector<uint32_t>& symbols) const {
  if (symbols.size() < 2) return;
  symbols.size() <= kFew ? apply_to_few(symbols) : apply_to_many(symbols);
}

void BpeMerges::apply_to_few(std::vector<uint32_t>& symbols) const {
  std::array<const Slot*, kFew> merge;  // of each symbol with the next
  size_t last = symbols.size() - 1;
  for (size_t i = 0; i < last; ++i) merge[i] = &find(symbols[i], symbols[i + 1]);
  while (last > 0) {
    size_t best = 0;
    for (size_t i = 1; i < last; ++i) {
      if (merge[i]->rank < merge[best]->rank) best = i;
    }
    if (merge[best]->rank == kNone) break;
    symbols[best] = merge[best]->merged;
    for (size_t i = best + 1; i < last; ++i) {
      symbols[i] = symbols[i + 1];
      merge[i - 1] = merge[i];
    }
    --last;
    if (best > 0) merge[best - 1] = &find(symbols[best - 1], symbols[best]);
    if (best < last) merge[best] = &find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(last + 1);
}

void BpeMerges::apply_to_many(std::vector<uint32_t>& symbols) const {
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> next(count), previous(count);
  std::vector<Candidate> first;
  const auto candidate = [&](uint32_t at, uint32_t right) {
    const Slot& slot = find(symbols[at], symbols[right]);
    return Candidate{slot.rank, at, symbols[at], symbols[right], slot.merged};
  };
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
    if (i + 1 == count) break;
    const Candidate found = candidate(i, i + 1);
    if (found.rank != kNone) first.push_back(found);
  }
  std::priority_queue<Candidate> heap({}, std::move(first));
  const auto push = [&](uint32_t at, uint32_t right) {
    const Candidate found = candidate(at, right);
    if (found.rank != kNone) heap.push(found);
  };
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const uint32_t right = next[top.at];
    if (symbols[top.at] != top.left || right == count || symbols[right] != top.right) continue;
    symbols[top.at] = top.merged;
    symbols[right] = kNone;  // gone
    next[top.at] = next[right];
    if (next[right] != count) previous[next[right]] = top.at;
    if (top.at != 0) push(previous[top.at], top.at);
    if (next[top.at] != count) push(top.at, next[top.at]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < count; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace xffl::tokenize
