#include "xffl/tokenize/prompt_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xffl/base/error.h"

namespace xffl::tokenize {
namespace {

TEST(PromptTemplate, PutsTheTextInItsPlace) {
  EXPECT_EQ(PromptTemplate().apply("x {text}"), "x {text}");
  EXPECT_EQ(PromptTemplate("{text}").apply("x"), "x");
  EXPECT_EQ(PromptTemplate("Napište dokument: {text}!").apply("a {b}"), "Napište dokument: a {b}!");
  EXPECT_EQ(PromptTemplate("{{{text}}} {{ }}").apply("x"), "{x} { }");
}

TEST(PromptTemplate, RefusesWhatIsNotOneText) {
  for (const std::string_view bad : {"", "no field", "{text} {text}", "{title}: {text}", "{text",
                                     "} {text}", "{ text }", "{{text}}"}) {
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
