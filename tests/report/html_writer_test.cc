#include "html_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl::report {
namespace {

TEST(Escaped, HasNoMarkupAndNoControls) {
  EXPECT_EQ(escaped("\"><script>'&"), "&quot;&gt;&lt;script&gt;&#39;&amp;");
  EXPECT_EQ(escaped(std::string("a\0b\x1b[", 5)), "a\\x00b\\x1B[");
  EXPECT_EQ(escaped("x\xe2\x80\xaey").find("\xe2\x80\xae"), std::string::npos) << "bidi";
  EXPECT_EQ(escaped("\xff<"), "\\xFF&lt;");
  EXPECT_EQ(escaped("password=hunter2hunter2"), "password=[removed]");
}

TEST(Escaped, IsBounded) { EXPECT_LT(escaped(std::string(1 << 20, 'x')).size(), 3000u); }

TEST(HtmlWriter, EscapesTextAndAttributes) {
  HtmlWriter html;
  html.open("p", {{"title", "\"<x>"}});
  html.text("a<b");
  html.element("b", "c&d");
  html.close();
  EXPECT_EQ(html.take(), "<p title=\"&quot;&lt;x&gt;\">a&lt;b<b>c&amp;d</b></p>");
}

TEST(HtmlWriter, RefusesAPageWithAnOpenTag) {
  HtmlWriter html;
  html.open("p");
  EXPECT_THROW(html.take(), Error);
  html.close();
  EXPECT_EQ(html.take(), "<p></p>");
  EXPECT_THROW(html.close(), Error);
}

}  // namespace
}  // namespace xffl::report
