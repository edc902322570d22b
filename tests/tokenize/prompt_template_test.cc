#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xffl/base/error.h"
#include "xffl/tokenize/documents.h"

namespace xffl::tokenize {
namespace {

TEST(PromptTemplate, ReplacesTheTextField) {
  EXPECT_EQ(PromptTemplate().apply("", "x {text}").text, "x {text}");
  EXPECT_EQ(PromptTemplate("{text}").apply("", "x").text, "x");
  EXPECT_EQ(PromptTemplate("Napište dokument: {text}!").apply("", "a {b}").text,
            "Napište dokument: a {b}!");
  EXPECT_EQ(PromptTemplate("{{{text}}} {{ }}").apply("", "x").text, "{x} { }");
}

TEST(PromptTemplate, ReportsTheBeginOfTheText) {
  const Prompted plain = PromptTemplate("a: {text}.").apply("", "xyz");
  EXPECT_EQ(plain.text.substr(plain.text_begin), "xyz.");
  const PromptTemplate chat("<u>{prompt}</u> {{}} {text}!");
  EXPECT_TRUE(chat.has_prompt());
  const Prompted prompted = chat.apply("{text}?", "{prompt}");
  EXPECT_EQ(prompted.text, "<u>{text}?</u> {} {prompt}!");
  EXPECT_EQ(prompted.text.substr(prompted.text_begin), "{prompt}!");
  EXPECT_TRUE(PromptTemplate().begins_with_text());
  EXPECT_TRUE(PromptTemplate("{text}!").begins_with_text());
  EXPECT_FALSE(PromptTemplate("{prompt}{text}").begins_with_text());
  EXPECT_FALSE(chat.begins_with_text());
}

TEST(PromptTemplate, RejectsPatternsWithoutExactlyOneText) {
  for (const std::string_view bad :
       {"", "no field", "{text} {text}", "{title}: {text}", "{text", "} {text}", "{prompt}",
        "{text}{prompt}", "{prompt}{prompt}{text}", "{ text }", "{{text}}"}) {
    try {
      PromptTemplate prompt(bad);
      ADD_FAILURE() << "accepted: " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(), testing::HasSubstr("{text}"));
    }
  }
}

}  // namespace
}  // namespace xffl::tokenize
