#include "split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "unicode_additions.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

// A sound pattern takes a few steps a character; backtracking over a run takes one each.
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
    : compiled_(std::make_unique<Compiled>(to_pcre2(pattern))) {
  if (!compiled_->matches_nothing()) return;
  throw Error(ErrorKind::kUnsupported, "the split pattern " + log::printable(pattern, 300) +
                                           " may match no character at all");
}

SplitPattern::SplitPattern(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;

SplitPattern SplitPattern::word_character() {
  std::string items;
  for (const UnicodeRange& range : kUnicodeAdditions) {
    const bool word =
        range.category[0] == 'L' || range.category[0] == 'M' || range.category == "Nd";
    if (!word) continue;
    char text[40];
    std::snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", range.first, range.last);
    items += text;
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
  // The caller has checked the text's UTF-8 once, for all matches.
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
