#include "xffl/base/text_width.h"

#include <gtest/gtest.h>
#include <locale.h>
#include <wchar.h>

#include <string>

#include "xffl/base/log.h"

namespace xffl {
namespace {

TEST(TextWidth, CountsColumns) {
  EXPECT_EQ(display_width(""), 0u);
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width("caf\u00e9"), 4u);
  EXPECT_EQ(display_width("cafe\u0301"), 4u) << "a combining accent";
  EXPECT_EQ(display_width("\u6771\u4eac"), 4u) << "East Asian wide";
  EXPECT_EQ(display_width("\uff21"), 2u) << "full width";
  EXPECT_EQ(display_width("\U0001f600"), 2u) << "emoji";
  EXPECT_EQ(display_width("\u2764"), 1u) << "a heart as text";
  EXPECT_EQ(display_width("\u2764\ufe0f"), 2u) << "a heart as emoji";
  EXPECT_EQ(display_width("\u200b"), 0u) << "zero width space";
  EXPECT_EQ(display_width("\u1100\u1161"), 2u) << "a Hangul syllable of two parts";
  EXPECT_EQ(display_width("\xff\xc3"), 2u) << "no UTF-8";
}

TEST(TextWidth, CutsAfterWholeCharacters) {
  EXPECT_EQ(cut_to_width("abc", 2), "ab");
  EXPECT_EQ(cut_to_width("abc", 3), "abc");
  EXPECT_EQ(cut_to_width("abc", 0), "");
  EXPECT_EQ(cut_to_width("a\u6771b", 2), "a") << "half of a wide character";
  EXPECT_EQ(cut_to_width("a\u6771b", 3), "a\u6771");
  EXPECT_EQ(cut_to_width("e\u0301x", 1), "e\u0301") << "with its marks";
  EXPECT_EQ(cut_to_width("a\u2764\ufe0f", 2), "a") << "an emoji without its variation selector";
  EXPECT_EQ(cut_to_width("a\u2764\ufe0f", 3), "a\u2764\ufe0f");
}

TEST(TextWidth, FillsUpToTheWidth) {
  EXPECT_EQ(fill_to_width("ab", 4), "ab  ");
  EXPECT_EQ(fill_to_width("\u6771\u4eac", 3), "\u6771 ");
  EXPECT_EQ(fill_to_width("abc", 2), "ab");
}

// A facility's text: its escapes, direction marks and broken bytes become printable first.
TEST(TextWidth, HostileTextFits) {
  const std::string hostile = "\033[2J\u202e\r\n\xf0\x9f\x80" + std::string(3000, 'x') + "\u6771";
  for (const size_t columns : {0u, 1u, 7u, 40u}) {
    const std::string cut(cut_to_width(log::printable(hostile), columns));
    EXPECT_EQ(display_width(cut), columns);
    EXPECT_EQ(cut.find('\033'), std::string::npos);
  }
}

// Reference: the C library's wcwidth(). A difference in a script that either side does not know yet
// is allowed, and no character is narrower here.
TEST(TextWidth, AgreesWithTheCLibrary) {
  const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) GTEST_SKIP() << "this machine has no locale C.UTF-8";
  const locale_t before = ::uselocale(utf8);
  size_t compared = 0, narrower = 0, wider = 0;
  for (wchar_t code = 0xa0; code < 0x20000; ++code) {
    const int expected = ::wcwidth(code);
    char bytes[16] = {};
    mbstate_t state{};
    const size_t length = ::wcrtomb(bytes, code, &state);
    if (expected < 0 || length > sizeof bytes) continue;
    const auto found = static_cast<int>(display_width({bytes, length}));
    ++compared;
    narrower += found < expected;
    wider += found > expected;
  }
  ::uselocale(before);
  ::freelocale(utf8);
  EXPECT_GT(compared, 50000u);
  EXPECT_LT(narrower, compared / 500);
  EXPECT_LT(wider, compared / 500);
}

}  // namespace
}  // namespace xffl
