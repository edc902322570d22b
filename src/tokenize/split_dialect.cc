// How it works: one pass over the pattern that copies it in PCRE2's spelling. Characters leave as
// themselves or as \x{...}; a set of characters (\s, \p{L}, [...]) leaves as the inside of a class.
#include <array>
#include <cctype>
#include <cstdio>
#include <vector>

#include "code_points.h"
#include "split_pattern.h"
#include "unicode_additions.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

constexpr size_t kMaxPatternBytes = 4096;
constexpr size_t kMaxGroupDepth = 32;
constexpr std::string_view kWhiteSpace = R"(\x09-\x0d\x{85}\p{Z})";  // Unicode's White_Space
constexpr std::array<std::string_view, 33> kCategories{
    "L",  "M",  "N",  "P",  "S",  "Z",  "Lu", "Ll", "Lt", "Lm", "Lo",
    "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
    "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf"};

std::string hex(uint32_t code_point) {
  char text[16];
  std::snprintf(text, sizeof text, "\\x{%x}", code_point);
  return text;
}

std::string category_items(std::string_view name) {
  std::string items = "\\p{" + std::string(name) + "}";
  for (const UnicodeRange& range : kUnicodeAdditions) {
    if (range.category.starts_with(name)) items += hex(range.first) + "-" + hex(range.last);
  }
  return items;
}

// A character, or the inside of a class that holds a set of them.
struct Item {
  bool is_set = false;
  bool negated = false;
  uint32_t code_point = 0;
  std::string items;
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    if (in_.empty() || in_.size() > kMaxPatternBytes) {
      throw Error(ErrorKind::kUnsupported, "a split pattern of " + std::to_string(in_.size()) +
                                               " bytes, expected 1 to " +
                                               std::to_string(kMaxPatternBytes));
    }
    if (find_invalid_utf8(in_) != in_.size()) corrupt("is not UTF-8");
    while (at_ < in_.size()) element();
    if (!groups_.empty()) corrupt("has a group that does not end");
    return out_;
  }

 private:
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ErrorKind::kUnsupported, "the split pattern " + log::printable(in_, 300) + " has " +
                                             what + " at byte " + std::to_string(at_) +
                                             ", which this program does not read as HF does");
  }
  [[noreturn]] void corrupt(const std::string& what) const {
    throw Error(ErrorKind::kCorrupt, "the split pattern " + log::printable(in_, 300) + " " + what +
                                         " (byte " + std::to_string(at_) + ")");
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool ends() const { return at_ >= in_.size(); }
  bool take(std::string_view text) {
    if (!in_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  bool caseless() const { return !groups_.empty() && groups_.back(); }

  void element();
  void open_group();
  void quantifier();
  void interval();
  void literal(uint32_t code_point);
  void set_outside(const Item& item);
  void character_class();
  Item class_item();
  Item escape();
  Item property(bool negated);
  uint32_t hex_digits(size_t min, size_t max);

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  std::vector<bool> groups_;  // open ones: whether case is ignored inside
  char previous_letter_ = 0;  // the caseless literal just before, in lower case
};

void Translator::element() {
  const char c = peek();
  const char letter_before = previous_letter_;
  previous_letter_ = 0;
  if (c == '\\') {
    const Item item = escape();
    item.is_set ? set_outside(item) : literal(item.code_point);
  } else if (c == '[') {
    character_class();
  } else if (c == '(') {
    open_group();
  } else if (c == ')') {
    if (groups_.empty()) corrupt("has a ')' too many");
    groups_.pop_back();
    out_ += c;
    ++at_;
  } else if (c == '?' || c == '*' || c == '+' || c == '{') {
    quantifier();
  } else if (c == '^' || c == '$') {
    unsupported(std::string("the anchor ") + c);
  } else if (c == '|' || c == '.') {
    out_ += c;
    ++at_;
  } else {
    previous_letter_ = letter_before;
    literal(next_code_point(in_, at_));
  }
}

void Translator::open_group() {
  static constexpr std::array<std::string_view, 7> kOpenings{
      "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
  if (groups_.size() == kMaxGroupDepth) unsupported("groups nested too deep");
  for (const std::string_view opening : kOpenings) {
    if (!take(opening)) continue;
    groups_.push_back(caseless() || opening == "(?i:");
    out_ += opening;
    return;
  }
  if (peek(1) == '?' || peek(1) == '*') unsupported("a special group");
  groups_.push_back(caseless());
  out_ += "(?:";
  ++at_;
}

void Translator::quantifier() {
  if (out_.empty() || out_.back() == '|') corrupt("repeats nothing");
  if (peek() == '{') {
    interval();
  } else {
    out_ += in_[at_++];
    // Lazy and possessive mean the same in both dialects, but not behind {n,m}.
    if (peek() == '?' || peek() == '+') out_ += in_[at_++];
  }
  const char c = peek();
  if (c == '?' || c == '*' || c == '+' || c == '{') unsupported("a repeated repetition");
}

void Translator::interval() {
  ++at_;
  std::string body;
  while (!ends() && peek() != '}') body += in_[at_++];
  ++at_;
  const size_t comma = body.find(',');
  const std::string low = body.substr(0, comma);
  const std::string high = comma == std::string::npos ? low : body.substr(comma + 1);
  const auto digits = [](const std::string& text) {
    return text.size() <= 4 && text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (low.empty() || !digits(low) || !digits(high) || body.size() > 9) {
    unsupported("a brace that is no {n}, {n,} or {n,m}");
  }
  out_ += "{" + body + "}";
}

void Translator::literal(uint32_t code_point) {
  const bool letter = code_point < 0x80 && std::isalpha(static_cast<int>(code_point)) != 0;
  if (caseless()) {
    // Oniguruma folds one character to several: sharp s matches (?i:ss).
    if (code_point >= 0x80) unsupported("a character beyond ASCII in (?i:...)");
    const char lower = letter ? static_cast<char>(code_point | 0x20) : '\0';
    const std::string pair{previous_letter_, lower};
    for (const char* folded : {"ss", "st", "ff", "fi", "fl"}) {
      if (pair == folded) unsupported("'" + pair + "' in (?i:...)");
    }
    previous_letter_ = lower;
  }
  if (letter || (code_point < 0x80 && std::isdigit(static_cast<int>(code_point)) != 0)) {
    out_ += static_cast<char>(code_point);
  } else {
    out_ += hex(code_point);
  }
}

void Translator::set_outside(const Item& item) {
  out_ += (item.negated ? "[^" : "[") + item.items + "]";
}

void Translator::character_class() {
  ++at_;
  out_ += take("^") ? "[^" : "[";
  if (peek() == ']') unsupported("a class that begins with ]");
  for (bool first = true; peek() != ']'; first = false) {
    if (ends()) corrupt("has a class that does not end");
    if (peek() == '-' && !first && peek(1) != ']') unsupported("a - inside a class");
    const Item item = class_item();
    if (item.is_set) {
      if (item.negated) unsupported("a negated set in a class");
      out_ += item.items;
      continue;
    }
    out_ += hex(item.code_point);
    if (peek() != '-' || peek(1) == ']' || peek(1) == '\0') continue;
    ++at_;
    const Item last = class_item();
    if (last.is_set || last.code_point < item.code_point)
      corrupt("has a range that runs backwards");
    out_ += "-" + hex(last.code_point);
  }
  ++at_;
  out_ += "]";
}

Item Translator::class_item() {
  if (peek() == '[') unsupported("a class in a class");
  if (peek() == '&' && peek(1) == '&') unsupported("an intersection of classes");
  if (peek() == '\\') return escape();
  return {.code_point = next_code_point(in_, at_)};
}

Item Translator::escape() {
  ++at_;
  if (ends()) corrupt("ends in a backslash");
  const char c = in_[at_++];
  switch (c) {
    case 'n':
      return {.code_point = '\n'};
    case 'r':
      return {.code_point = '\r'};
    case 't':
      return {.code_point = '\t'};
    case 'f':
      return {.code_point = '\f'};
    case 'v':
      return {.code_point = '\v'};
    case 's':
    case 'S':
      return {.is_set = true, .negated = c == 'S', .items = std::string(kWhiteSpace)};
    case 'd':
    case 'D':
      return {.is_set = true, .negated = c == 'D', .items = category_items("Nd")};
    case 'p':
    case 'P':
      return property(c == 'P');
    case 'u':
      return {.code_point = hex_digits(4, 4)};
    case 'x': {
      const bool braced = take("{");
      const uint32_t code_point = braced ? hex_digits(1, 6) : hex_digits(2, 2);
      if (braced && !take("}")) corrupt("has a \\x{ that does not end");
      if (!braced && code_point >= 0x80) unsupported("a single byte by \\x");
      return {.code_point = code_point};
    }
    default:
      break;
  }
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x80 || std::isalnum(byte) != 0) {
    --at_;
    unsupported("the escape \\" + log::printable(std::string(1, c), 4));
  }
  return {.code_point = byte};
}

Item Translator::property(bool negated) {
  if (caseless()) unsupported("a category of characters in (?i:...)");
  const size_t end = in_.find('}', at_);
  if (peek() != '{' || end == std::string_view::npos) corrupt("has a \\p without {name}");
  const std::string_view name = in_.substr(at_ + 1, end - at_ - 1);
  for (const std::string_view known : kCategories) {
    if (name != known) continue;
    at_ = end + 1;
    return {.is_set = true, .negated = negated, .items = category_items(name)};
  }
  unsupported("the category '" + log::printable(name, 40) + "'");
}

uint32_t Translator::hex_digits(size_t min, size_t max) {
  uint32_t value = 0;
  size_t count = 0;
  for (; count < max && std::isxdigit(static_cast<unsigned char>(peek())) != 0; ++count, ++at_) {
    const char c = peek();
    value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  if (count < min || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
    corrupt("has a number that is no character");
  }
  return value;
}

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace xffl::tokenize
