// The ids of words met before: a text repeats its words, and merging them again would be most of
// the work.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace xffl::tokenize {

/// A word's hash, in the upper bits.
inline uint64_t hash_of_word(std::string_view word) {
  uint64_t hash = word.size();
  while (true) {
    uint64_t part = 0;
    std::memcpy(&part, word.data(), word.size() < 8 ? word.size() : 8);
    hash = (hash ^ (hash >> 32) ^ part) * 0x9e3779b97f4a7c15u;
    if (word.size() <= 8) return hash * 0xbf58476d1ce4e5b9u;
    word.remove_prefix(8);
  }
}

/// Short words only, one in each place: a newer one drives out the older. Not thread-safe.
class WordCache {
 public:
  struct Entry {
    uint8_t num_bytes = 0;
    uint8_t num_ids = 0;
    char bytes[22] = {};
    int32_t ids[10] = {};
  };
  static_assert(sizeof(Entry) == 64);

  static bool fits(std::string_view word) { return word.size() <= sizeof(Entry::bytes); }

  /// The place of `word`, which fits; holds(entry, word) tells whether it is there.
  Entry& place(std::string_view word) { return entries_[hash_of_word(word) >> (64 - kBits)]; }
  static bool holds(const Entry& entry, std::string_view word) {
    return entry.num_bytes == word.size() &&
           std::memcmp(entry.bytes, word.data(), word.size()) == 0;
  }

 private:
  static constexpr int kBits = 16;  // 4 MiB
  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << kBits);
};

}  // namespace xffl::tokenize
