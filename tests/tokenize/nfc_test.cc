// References: examples of UAX #15 and The Unicode Standard. tokenize.hf_same_bpe.qwen compares all
// characters with Hugging Face's tokenizers.
#include "nfc.h"

#include <gtest/gtest.h>

namespace xffl::tokenize {
namespace {

std::string nfc(const char* text) {
  std::vector<NfcChange> changes;
  return to_nfc(text, changes);
}

TEST(Nfc, ComposesDecomposesAndSorts) {
  EXPECT_EQ(nfc("plain text"), "plain text");
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("\u1e0b\u0323"), "\u1e0d\u0307");    // the mark below joins first
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");  // marks without a composition are sorted
  EXPECT_EQ(nfc("\u212b\u2126"), "\u00c5\u03a9");    // Angstrom and Ohm
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");          // excluded from composition
  EXPECT_EQ(nfc("\u0344"), "\u0308\u0301");          // a mark that decomposes
  EXPECT_EQ(nfc("a\u0315\u0300\u05ae\u0300\u0062"), "\u00e0\u05ae\u0300\u0315b");
  EXPECT_EQ(nfc("a\u0313\u0301"), "a\u0313\u0301");  // a mark of the same class is between
  EXPECT_EQ(nfc("\u1112\u1161\u11ab\u1100\u1173\u11af"), "\ud55c\uae00");  // Hangul
  EXPECT_EQ(nfc("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(nfc("\u09c7\u09be\u0bc6\u0bbe"), "\u09cb\u0bca");  // vowel signs of class 0
  EXPECT_EQ(nfc("\u0301a"), "\u0301a");
  EXPECT_EQ(nfc("\U0002f800"), "\u4e3d");
}

TEST(Nfc, IsIdempotent) {
  for (const char* text : {"\u1e69\u0323\u0307", "\uac00\u11a7\u11a8", "a\u0300\u0301\u0315"})
    EXPECT_EQ(nfc(nfc(text).c_str()), nfc(text));
}

TEST(Nfc, NamesTheChangedStretches) {
  std::vector<NfcChange> changes;
  EXPECT_EQ(to_nfc("xe\u0301y\u00e9\u212bz", changes), "x\u00e9y\u00e9\u00c5z");
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].begin, 1U);
  EXPECT_EQ(changes[0].end, 4U);
  EXPECT_EQ(changes[0].new_begin, 1U);
  EXPECT_EQ(changes[0].new_end, 3U);
  EXPECT_EQ(changes[1].end, 10U);
  EXPECT_EQ(changes[1].new_end, 8U);
}

TEST(Nfc, ALongRowOfMarksIsSortedOnce) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  std::vector<NfcChange> changes;
  const std::string found = to_nfc(text, changes);
  EXPECT_EQ(found.substr(0, 5), "\u1ea1\u0323");
  EXPECT_EQ(found.size(), text.size());
}

TEST(Nfc, PlainTextNeedsNoWork) {
  EXPECT_TRUE(is_plain_nfc("caff\u00e8 \u02ff"));
  EXPECT_FALSE(is_plain_nfc("e\u0300"));
}

}  // namespace
}  // namespace xffl::tokenize
