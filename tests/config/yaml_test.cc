#include "yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace xffl::config {
namespace {

using testing::HasSubstr;

std::string problems(std::string_view yaml) {
  std::vector<Problem> found;
  read_yaml(yaml, found);
  return format_problems("f", found);
}

TEST(ReadYaml, KeepsPlacesQuotesAndOrder) {
  std::vector<Problem> found;
  const Node root =
      read_yaml("b: 1\n\xc3\xa8: \"\xc3\xb2\" \na: [x, {c: 'it''s'}]\nn:\nz: |\n  t\n", found);
  EXPECT_TRUE(found.empty()) << format_problems("f", found);
  ASSERT_EQ(root.keys.size(), 5u);
  EXPECT_EQ(root.keys[0].text, "b");
  EXPECT_FALSE(root.items[0].quoted);
  EXPECT_TRUE(root.items[1].quoted);
  EXPECT_EQ(root.items[1].mark.line, 2);
  EXPECT_EQ(root.items[1].mark.column, 4);  // characters, not bytes
  const Node& pair = root.items[2].items[1];
  EXPECT_EQ(pair.find("c")->text, "it's");
  EXPECT_EQ(pair.find("c")->mark.column, 12);
  EXPECT_EQ(pair.find("d"), nullptr);
  EXPECT_EQ(root.find("n")->kind, Node::Kind::kNull);
  EXPECT_EQ(root.find("n")->mark.line, 4);
  EXPECT_EQ(root.find("z")->text, "t\n");
}

TEST(ReadYaml, RejectsAmbiguousYaml) {
  EXPECT_THAT(problems("a: 1\nb: 2\na: 3\n"),
              HasSubstr("f:3:1: error: duplicate key 'a': it is already on line 1"));
  EXPECT_THAT(problems("a: {x: 1, \"x\": 2}"), HasSubstr("f:1:11: error: duplicate key 'x'"));
  EXPECT_THAT(problems("a: &x 1\nb: *x\n"), HasSubstr("f:1:4: error: anchors"));
  EXPECT_THAT(problems("a: &x 1\nb: *x\n"), HasSubstr("f:2:4: error: aliases"));
  EXPECT_THAT(problems("a: !!python/object x"), HasSubstr("f:1:4: error: tags"));
  EXPECT_THAT(problems("a: 1\n---\nb: 2\n"), HasSubstr("f:2:1: error: a second document"));
  EXPECT_THAT(problems("- a\nb: c\n"), HasSubstr("f:2:1: error: a second document, or text after"));
  EXPECT_THAT(problems("? {a: b}\n: c\n"), HasSubstr("expected a key before ':', found a mapping"));
  EXPECT_THAT(problems("a: \xff"), HasSubstr("f:1:4: error: a byte that is not UTF-8"));
  EXPECT_THAT(problems("a: \xc0\xaf"), HasSubstr("not UTF-8"));
  EXPECT_THAT(problems("a: \x1b[2J"), HasSubstr("f:1:4: error: a control character"));
  EXPECT_THAT(problems(std::string_view("a: \0", 4)), HasSubstr("a control character"));
  EXPECT_THAT(problems("a: b\rc: d"), HasSubstr("a control character"));
  EXPECT_THAT(problems("a:\n  b: 1\n\tc: 2\n"), HasSubstr("f:3:1: error: a tab"));
  EXPECT_THAT(problems("a:\n\tb: 1\nc: 2\n"), HasSubstr("f:2:1: error: a tab"));
  EXPECT_EQ(problems("a: [1,\n\t2]\n"), "") << "between brackets it does not matter";
}

TEST(ReadYaml, ShowsAnEscapedByteReadably) {
  EXPECT_EQ(problems("a: \"b\\\xc3\xa9\"\n"),
            "f:1:8: error: not YAML: unknown escape character: \\xC3");
}

TEST(ReadYaml, FindsTheQuoteThatIsNeverClosed) {
  EXPECT_EQ(problems("a: \"b\\"), "f:1:4: error: this quote is never closed");
  EXPECT_EQ(problems("a: \"abc\nb: 3\n"), "f:1:4: error: this quote is never closed");
  EXPECT_EQ(problems("a: \"abc"), "f:1:4: error: this quote is never closed");
  EXPECT_EQ(problems("a: 'abc"), "f:1:4: error: this quote is never closed");
  EXPECT_EQ(problems("k: it's\n# don't\na: [x, \"b\"]\nc: \"abc\nb: 3\n"),
            "f:4:4: error: this quote is never closed");
  EXPECT_THAT(problems("a: \"abc\nb: \"\n"),
              HasSubstr("f:1:4: error: quoted text must end on the line"));
  EXPECT_EQ(problems("a: [1, 2\nb: 3\n"), "f:1:4: error: this '[' is never closed by ']'");
  EXPECT_EQ(problems("a: {b: c\n"), "f:1:4: error: this '{' is never closed by '}'");
}

TEST(ReadYaml, BoundsSizeAndDepth) {
  EXPECT_THAT(problems(std::string((4 << 20) + 1, ' ')), HasSubstr("at most 4194304 are read"));
  const auto nested = [](size_t depth) {
    return "a: " + std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(problems(nested(31)), "");
  EXPECT_THAT(problems(nested(32)), HasSubstr("f:1:35: error: nested deeper than 32 levels"));
  EXPECT_THAT(problems(nested(200'000)), HasSubstr("nested deeper"));
  std::string blocks;
  for (int i = 0; i < 40; ++i) blocks += std::string(static_cast<size_t>(i), ' ') + "k:\n";
  EXPECT_THAT(problems(blocks), HasSubstr("nested deeper"));
}

TEST(ReadYaml, AnEmptyFileIsAnEmptyMapping) {
  for (const char* empty : {"", "# only this\n", "---\n", "\xef\xbb\xbf"}) {
    std::vector<Problem> found;
    EXPECT_EQ(read_yaml(empty, found).kind, Node::Kind::kMapping) << empty;
    EXPECT_TRUE(found.empty());
  }
}

TEST(ReadYaml, DamagedTextGivesProblemsOrATreeNeverMore) {
  const std::string good =
      "project: \"b\"\nt: {k: [1, 'x y', {z: ~}], e: 1e-4}\nf:\n  - a: b\n    c: |\n      d\n  - ? "
      "x\n    : y\n";
  std::mt19937 random(11);
  const std::string_view spice = "\"'[]{}:,-?&*!|>%@`#\n\t \\~<0xe";
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string yaml = good;
    const int edits = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < edits; ++i) {
      const size_t at = random() % yaml.size();
      switch (random() % 3) {
        case 0:
          yaml[at] = spice[random() % spice.size()];
          break;
        case 1:
          yaml.insert(at, 1, spice[random() % spice.size()]);
          break;
        default:
          yaml.erase(at, 1 + random() % 5);
      }
      if (yaml.empty()) yaml = "a";
    }
    std::vector<Problem> found;
    ASSERT_NO_THROW(read_yaml(yaml, found)) << yaml;
  }
}

TEST(YamlScalar, IsReadBackAsItWas) {
  std::vector<std::string> texts{"",    "a",    "null", "~",    "no",
                                 "- x", "a: b", "a #b", "#",    "[x]",
                                 "{",   "it's", "\"",   "\\",   "/a b/\xc3\xa8",
                                 "*x",  "&x",   "!x",   "%x",   "@",
                                 "`",   "|",    ">",    "?",    " x ",
                                 "0",   "010",  "1e-4", "true", "x,y",
                                 "<<",  "--x",  "a\tb", "\x7f", "=",
                                 "..."};
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += static_cast<char>(0x20 + random() % 0x5f);
    texts.push_back(text);
  }
  std::vector<Problem> found;
  for (const std::string& text : texts) {
    const Node root = read_yaml("k: " + yaml_scalar(text) + "\nl: " + yaml_flow_list({text, text}) +
                                    "\n" + yaml_scalar("x" + text) + ": v\n",
                                found);
    ASSERT_TRUE(found.empty()) << yaml_scalar(text) << "\n" << format_problems("f", found);
    EXPECT_EQ(root.find("k")->text, text);
    EXPECT_EQ(root.find("l")->items.at(1).text, text);
    EXPECT_NE(root.find("x" + text), nullptr);
  }
}

}  // namespace
}  // namespace xffl::config
