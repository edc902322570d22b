// How it works: a character that has class 0, does not decompose and never joins the previous
// character is a boundary. The text between two boundaries is decomposed, its marks are sorted by
// class, and its pairs are composed (UAX #15, section 1.3; Hangul: The Unicode Standard, section
// 3.12). All other text is copied.
#include "nfc.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "characters.h"
#include "nfc_tables.h"

namespace xffl::tokenize {
namespace {

constexpr uint32_t kFirstMark = 0x300;  // smaller characters are boundaries
constexpr uint32_t kHangul = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11a7;
constexpr uint32_t kNumLeads = 19, kNumVowels = 21, kNumTrails = 28;
constexpr uint32_t kNumHangul = kNumLeads * kNumVowels * kNumTrails;

struct Mark {
  uint32_t code_point = 0;
  uint8_t combining_class = 0;
};

uint8_t combining_class_of(uint32_t code_point) {
  const auto* const end = std::end(kCombiningClasses);
  const auto* const found =
      std::lower_bound(std::begin(kCombiningClasses), end, code_point,
                       [](const CombiningClass& each, uint32_t c) { return each.last < c; });
  return found != end && found->first <= code_point ? found->value : 0;
}

const Decomposition* decomposition_of(uint32_t code_point) {
  const auto* const end = std::end(kDecompositions);
  const auto* const found =
      std::lower_bound(std::begin(kDecompositions), end, code_point,
                       [](const Decomposition& each, uint32_t c) { return each.code_point < c; });
  return found != end && found->code_point == code_point ? found : nullptr;
}

uint64_t pair_of(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

// `pairs` maps two characters to their composition; `seconds` has the second character of each
// pair.
struct Compositions {
  std::unordered_map<uint64_t, uint32_t> pairs;
  std::vector<uint32_t> seconds;  // ascending

  Compositions() {
    for (const Decomposition& each : kDecompositions) {
      if (!each.composes) continue;
      pairs.emplace(pair_of(each.first, each.second), each.code_point);
      seconds.push_back(each.second);
    }
    std::sort(seconds.begin(), seconds.end());
    seconds.erase(std::unique(seconds.begin(), seconds.end()), seconds.end());
  }
};

const Compositions& compositions() {
  static const Compositions all;
  return all;
}

bool is_within(uint32_t code_point, uint32_t first, uint32_t count) {
  return code_point >= first && code_point - first < count;
}

// The character of two neighbours, or 0.
uint32_t compose(uint32_t first, uint32_t second) {
  if (is_within(first, kLead, kNumLeads) && is_within(second, kVowel, kNumVowels))
    return kHangul + ((first - kLead) * kNumVowels + second - kVowel) * kNumTrails;
  if (is_within(first, kHangul, kNumHangul) && (first - kHangul) % kNumTrails == 0 &&
      is_within(second, kTrail + 1, kNumTrails - 1))
    return first + second - kTrail;
  const auto found = compositions().pairs.find(pair_of(first, second));
  return found == compositions().pairs.end() ? 0 : found->second;
}

bool is_boundary(uint32_t code_point) {
  if (code_point < kFirstMark) return true;
  if (is_within(code_point, kVowel, kNumVowels) || is_within(code_point, kTrail, kNumTrails))
    return false;
  const Decomposition* const decomposition = decomposition_of(code_point);
  if (decomposition != nullptr && !decomposition->composes) return false;
  const std::vector<uint32_t>& seconds = compositions().seconds;
  return combining_class_of(code_point) == 0 &&
         !std::binary_search(seconds.begin(), seconds.end(), code_point);
}

void decompose(uint32_t code_point, std::vector<Mark>& marks) {
  if (is_within(code_point, kHangul, kNumHangul)) {
    const uint32_t index = code_point - kHangul;
    marks.push_back({kLead + index / (kNumVowels * kNumTrails)});
    marks.push_back({kVowel + index / kNumTrails % kNumVowels});
    if (index % kNumTrails != 0) marks.push_back({kTrail + index % kNumTrails});
    return;
  }
  const Decomposition* const found = decomposition_of(code_point);
  if (found == nullptr) {
    marks.push_back({code_point, combining_class_of(code_point)});
    return;
  }
  decompose(found->first, marks);
  if (found->second != 0) decompose(found->second, marks);
}

void sort_marks(std::vector<Mark>& marks) {
  for (auto begin = marks.begin(); begin != marks.end();) {
    const auto is_starter = [](const Mark& mark) { return mark.combining_class == 0; };
    if (is_starter(*begin)) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, marks.end(), is_starter);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

// Joins each character to the last starter, unless a character between both has class 0 or at
// least the character's class.
void compose_all(std::vector<Mark>& marks) {
  size_t kept = 0;
  ptrdiff_t starter = -1;
  for (const Mark mark : marks) {
    const bool neighbours = starter >= 0 && static_cast<size_t>(starter) + 1 == kept;
    const bool blocked =
        starter < 0 || (!neighbours && marks[kept - 1].combining_class >= mark.combining_class);
    const uint32_t composed =
        blocked ? 0 : compose(marks[static_cast<size_t>(starter)].code_point, mark.code_point);
    if (composed != 0) {
      marks[static_cast<size_t>(starter)].code_point = composed;
      continue;
    }
    if (mark.combining_class == 0) starter = static_cast<ptrdiff_t>(kept);
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

std::string normalized(std::string_view text) {
  std::vector<Mark> marks;
  for (size_t at = 0; at < text.size();) decompose(next_code_point(text, at), marks);
  sort_marks(marks);
  compose_all(marks);
  std::string result;
  for (const Mark& mark : marks) append_utf8(mark.code_point, result);
  return result;
}

}  // namespace

bool is_plain_nfc(std::string_view text) {
  constexpr unsigned char kFirstByte = 0xcc;  // of U+0300
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < kFirstByte; });
}

std::string to_nfc(std::string_view text, std::vector<NfcChange>& changes) {
  changes.clear();
  std::string result;
  size_t copied = 0;    // bytes of the text in the result
  size_t boundary = 0;  // of the last boundary
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (is_boundary(next_code_point(text, at))) {
      boundary = begin;
      continue;
    }
    for (size_t next = at; at < text.size(); at = next)
      if (is_boundary(next_code_point(text, next))) break;
    const std::string_view old = text.substr(boundary, at - boundary);
    const std::string now = normalized(old);
    result += text.substr(copied, boundary - copied);
    if (now != old) changes.push_back({boundary, at, result.size(), result.size() + now.size()});
    result += now;
    copied = at;
    boundary = at;
  }
  return result += text.substr(copied);
}

}  // namespace xffl::tokenize
