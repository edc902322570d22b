#include "split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <utility>
#include <vector>

#include "characters.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

// General categories of the characters that Unicode 15, 15.1 and 16 added to Unicode 14.
//
// HF's tokenizers match patterns with Unicode 16 (Oniguruma 6.9.10); PCRE2 10.42 has Unicode 14.
// These ranges make the splits equal. tests/tokenize/hf_same_bpe.py compares every character.
struct UnicodeRange {
  uint32_t first;
  uint32_t last;
  std::string_view category;
};

constexpr UnicodeRange kUnicodeAdditions[] = {
    // clang-format off
    {0x897, 0x897, "Mn"}, {0xcf3, 0xcf3, "Mc"}, {0xece, 0xece, "Mn"}, {0x1b4e, 0x1b4f, "Po"},
    {0x1b7f, 0x1b7f, "Po"}, {0x1c89, 0x1c89, "Lu"}, {0x1c8a, 0x1c8a, "Ll"}, {0x2427, 0x2429, "So"},
    {0x2ffc, 0x2fff, "So"}, {0x31e4, 0x31e5, "So"}, {0x31ef, 0x31ef, "So"}, {0xa7cb, 0xa7cc, "Lu"},
    {0xa7cd, 0xa7cd, "Ll"}, {0xa7da, 0xa7da, "Lu"}, {0xa7db, 0xa7db, "Ll"}, {0xa7dc, 0xa7dc, "Lu"},
    {0x105c0, 0x105f3, "Lo"}, {0x10d40, 0x10d49, "Nd"}, {0x10d4a, 0x10d4d, "Lo"},
    {0x10d4e, 0x10d4e, "Lm"}, {0x10d4f, 0x10d4f, "Lo"}, {0x10d50, 0x10d65, "Lu"},
    {0x10d69, 0x10d6d, "Mn"}, {0x10d6e, 0x10d6e, "Pd"}, {0x10d6f, 0x10d6f, "Lm"},
    {0x10d70, 0x10d85, "Ll"}, {0x10d8e, 0x10d8f, "Sm"}, {0x10ec2, 0x10ec4, "Lo"},
    {0x10efc, 0x10eff, "Mn"}, {0x1123f, 0x11240, "Lo"}, {0x11241, 0x11241, "Mn"},
    {0x11380, 0x11389, "Lo"}, {0x1138b, 0x1138b, "Lo"}, {0x1138e, 0x1138e, "Lo"},
    {0x11390, 0x113b5, "Lo"}, {0x113b7, 0x113b7, "Lo"}, {0x113b8, 0x113ba, "Mc"},
    {0x113bb, 0x113c0, "Mn"}, {0x113c2, 0x113c2, "Mc"}, {0x113c5, 0x113c5, "Mc"},
    {0x113c7, 0x113ca, "Mc"}, {0x113cc, 0x113cd, "Mc"}, {0x113ce, 0x113ce, "Mn"},
    {0x113cf, 0x113cf, "Mc"}, {0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo"},
    {0x113d2, 0x113d2, "Mn"}, {0x113d3, 0x113d3, "Lo"}, {0x113d4, 0x113d5, "Po"},
    {0x113d7, 0x113d8, "Po"}, {0x113e1, 0x113e2, "Mn"}, {0x116d0, 0x116e3, "Nd"},
    {0x11b00, 0x11b09, "Po"}, {0x11bc0, 0x11be0, "Lo"}, {0x11be1, 0x11be1, "Po"},
    {0x11bf0, 0x11bf9, "Nd"}, {0x11f00, 0x11f01, "Mn"}, {0x11f02, 0x11f02, "Lo"},
    {0x11f03, 0x11f03, "Mc"}, {0x11f04, 0x11f10, "Lo"}, {0x11f12, 0x11f33, "Lo"},
    {0x11f34, 0x11f35, "Mc"}, {0x11f36, 0x11f3a, "Mn"}, {0x11f3e, 0x11f3f, "Mc"},
    {0x11f40, 0x11f40, "Mn"}, {0x11f41, 0x11f41, "Mc"}, {0x11f42, 0x11f42, "Mn"},
    {0x11f43, 0x11f4f, "Po"}, {0x11f50, 0x11f59, "Nd"}, {0x11f5a, 0x11f5a, "Mn"},
    {0x1342f, 0x1342f, "Lo"}, {0x13439, 0x1343f, "Cf"}, {0x13440, 0x13440, "Mn"},
    {0x13441, 0x13446, "Lo"}, {0x13447, 0x13455, "Mn"}, {0x13460, 0x143fa, "Lo"},
    {0x16100, 0x1611d, "Lo"}, {0x1611e, 0x16129, "Mn"}, {0x1612a, 0x1612c, "Mc"},
    {0x1612d, 0x1612f, "Mn"}, {0x16130, 0x16139, "Nd"}, {0x16d40, 0x16d42, "Lm"},
    {0x16d43, 0x16d6a, "Lo"}, {0x16d6b, 0x16d6c, "Lm"}, {0x16d6d, 0x16d6f, "Po"},
    {0x16d70, 0x16d79, "Nd"}, {0x18cff, 0x18cff, "Lo"}, {0x1b132, 0x1b132, "Lo"},
    {0x1b155, 0x1b155, "Lo"}, {0x1cc00, 0x1ccef, "So"}, {0x1ccf0, 0x1ccf9, "Nd"},
    {0x1cd00, 0x1ceb3, "So"}, {0x1d2c0, 0x1d2d3, "No"}, {0x1df25, 0x1df2a, "Ll"},
    {0x1e030, 0x1e06d, "Lm"}, {0x1e08f, 0x1e08f, "Mn"}, {0x1e4d0, 0x1e4ea, "Lo"},
    {0x1e4eb, 0x1e4eb, "Lm"}, {0x1e4ec, 0x1e4ef, "Mn"}, {0x1e4f0, 0x1e4f9, "Nd"},
    {0x1e5d0, 0x1e5ed, "Lo"}, {0x1e5ee, 0x1e5ef, "Mn"}, {0x1e5f0, 0x1e5f0, "Lo"},
    {0x1e5f1, 0x1e5fa, "Nd"}, {0x1e5ff, 0x1e5ff, "Po"}, {0x1f6dc, 0x1f6dc, "So"},
    {0x1f774, 0x1f776, "So"}, {0x1f77b, 0x1f77f, "So"}, {0x1f7d9, 0x1f7d9, "So"},
    {0x1f8b2, 0x1f8bb, "So"}, {0x1f8c0, 0x1f8c1, "So"}, {0x1fa75, 0x1fa77, "So"},
    {0x1fa87, 0x1fa89, "So"}, {0x1fa8f, 0x1fa8f, "So"}, {0x1faad, 0x1faaf, "So"},
    {0x1fabb, 0x1fabf, "So"}, {0x1fac6, 0x1fac6, "So"}, {0x1face, 0x1facf, "So"},
    {0x1fada, 0x1fadc, "So"}, {0x1fadf, 0x1fadf, "So"}, {0x1fae8, 0x1fae9, "So"},
    {0x1faf7, 0x1faf8, "So"}, {0x1fbcb, 0x1fbef, "So"}, {0x2b739, 0x2b739, "Lo"},
    {0x2ebf0, 0x2ee5d, "Lo"}, {0x31350, 0x323af, "Lo"},
    // clang-format on
};

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

// A character, or the inside of a class of characters.
struct Item {
  bool is_set = false;
  bool negated = false;
  uint32_t code_point = 0;
  std::string items;
};

// Translates in one pass over the pattern. Writes a character as itself or as \x{...}, and a set of
// characters (\s, \p{L}, [...]) as the inside of a class.
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
  [[noreturn]] void unsupported(const std::string& construct) const {
    throw Error(ErrorKind::kUnsupported, "the split pattern " + log::printable(in_, 300) + " has " +
                                             construct + " at byte " + std::to_string(at_) +
                                             ", which xffl cannot match as HF does");
  }
  [[noreturn]] void corrupt(const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, "the split pattern " + log::printable(in_, 300) + " " +
                                         problem + " (byte " + std::to_string(at_) + ")");
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
  std::vector<bool> groups_;  // the open groups: true for a caseless group
  char previous_letter_ = 0;  // the preceding caseless literal, in lower case
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
    if (groups_.empty()) corrupt("has an unmatched ')'");
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
    // Lazy and possessive quantifiers have the same meaning in both dialects, except after {n,m}.
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
    // Oniguruma folds one character to several characters: sharp s matches (?i:ss).
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
  constexpr std::string_view kLetters = "nrtfv", kControls = "\n\r\t\f\v";
  if (const size_t i = kLetters.find(c); i != std::string_view::npos)
    return {.code_point = static_cast<uint32_t>(kControls[i])};
  switch (c) {
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
  const std::string_view digits = in_.substr(at_, max);
  const char* end = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  const auto count = static_cast<size_t>(end - digits.data());
  at_ += count;
  if (count < min || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
    corrupt("has a number that is not a character");
  }
  return value;
}

// A normal pattern takes a few steps per character; backtracking takes one step per character of a
// run.
constexpr uint32_t kMinMatchSteps = 1'000'000;
constexpr uint32_t kMatchStepsPerByte = 16;
constexpr size_t kStackBytes = 64 * 1024, kMaxStackBytes = 4 * 1024 * 1024;

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return log::printable(reinterpret_cast<const char*>(text), 200);
}

template <class T, void (*free_it)(T*)>
struct Free {
  void operator()(T* pointer) const { free_it(pointer); }
};
template <class T, void (*free_it)(T*)>
using Handle = std::unique_ptr<T, Free<T, free_it>>;

template <class T>
T* not_null(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

struct SplitPattern::Compiled {
  Handle<pcre2_code, pcre2_code_free> code;
  bool jit = false;

  explicit Compiled(const std::string& pattern) {
    const Handle<pcre2_compile_context, pcre2_compile_context_free> context(
        not_null(pcre2_compile_context_create(nullptr)));
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    size_t offset = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
    if (!code) {
      throw Error(ErrorKind::kCorrupt, "the split pattern does not compile: " + message_of(error));
    }
    jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  bool matches_nothing() const {
    uint32_t value = 0;
    pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &value);
    return value != 0;
  }
};

SplitPattern::SplitPattern(std::string_view pattern)
    : compiled_(std::make_unique<Compiled>(Translator(pattern).run())) {
  if (!compiled_->matches_nothing()) return;
  throw Error(ErrorKind::kUnsupported,
              "the split pattern " + log::printable(pattern, 300) + " may match the empty text");
}

SplitPattern::SplitPattern(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;

SplitPattern SplitPattern::word_character() {
  std::string items;
  for (const UnicodeRange& range : kUnicodeAdditions) {
    const bool word =
        range.category[0] == 'L' || range.category[0] == 'M' || range.category == "Nd";
    if (word) items += hex(range.first) + "-" + hex(range.last);
  }
  return SplitPattern(std::make_unique<Compiled>(
      R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control})" + items + "]"));
}

struct Matcher::State {
  const pcre2_code* code = nullptr;
  bool jit = false;
  Handle<pcre2_match_data, pcre2_match_data_free> match;
  Handle<pcre2_match_context, pcre2_match_context_free> context;
  Handle<pcre2_jit_stack, pcre2_jit_stack_free> stack;
  std::string_view text;
};

Matcher::Matcher(const SplitPattern& pattern) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.code = pattern.compiled_->code.get();
  state.jit = pattern.compiled_->jit;
  state.match.reset(not_null(pcre2_match_data_create(1, nullptr)));
  state.context.reset(not_null(pcre2_match_context_create(nullptr)));
  if (!state.jit) return;
  state.stack.reset(not_null(pcre2_jit_stack_create(kStackBytes, kMaxStackBytes, nullptr)));
  pcre2_jit_stack_assign(state.context.get(), nullptr, state.stack.get());
}

Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;

void Matcher::set_text(std::string_view text) {
  state_->text = text;
  const uint64_t steps = kMinMatchSteps + uint64_t{kMatchStepsPerByte} * text.size();
  pcre2_set_match_limit(state_->context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
}

bool Matcher::next(size_t from, size_t& begin, size_t& end) {
  State& state = *state_;
  const auto* text = reinterpret_cast<PCRE2_SPTR>(state.text.data());
  // The caller has validated the text as UTF-8 once, for all matches.
  const int found = state.jit
                        ? pcre2_jit_match(state.code, text, state.text.size(), from, 0,
                                          state.match.get(), state.context.get())
                        : pcre2_match(state.code, text, state.text.size(), from, PCRE2_NO_UTF_CHECK,
                                      state.match.get(), state.context.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw Error(ErrorKind::kRejected,
                "the tokenizer's split pattern is too expensive for a text of " +
                    std::to_string(state.text.size()) + " bytes, at byte " + std::to_string(from) +
                    ": " + message_of(found));
  }
  const size_t* range = pcre2_get_ovector_pointer(state.match.get());
  begin = range[0];
  end = range[1];
  return true;
}

}  // namespace xffl::tokenize
