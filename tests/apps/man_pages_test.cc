// Manual pages of help texts that roff could take for requests and escapes.
#include "man_pages.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>

#include "xffl/base/error.h"
#include "xffl/base/process.h"

namespace xffl::manual {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kExitCodes =
    "# Codes\n\n## Codes of `x-train`\n\nFirst.\n\n## Codes of `x`\n\n| code | kind | meaning "
    "|\n|---|---|---|\n| 0 | | Fine. |\n"
    "| 3 | config | Edit `x.yaml`, see [the page](a.md). |\n\nA last sentence.\n\n## "
    "Others\n\nNever.\n";

TEST(ManPage, EscapesWhatRoffWouldInterpret) {
  EXPECT_EQ(roff(".TH x"), "\\&.TH x");
  EXPECT_EQ(roff("'so /etc/passwd"), "\\(aqso /etc/passwd");
  EXPECT_EQ(roff("a\n.b"), "a\n\\&.b");
  EXPECT_EQ(roff("\\fB\\n[x] --all \"q\" ^~"), "\\efB\\en[x] \\-\\-all \\(dqq\\(dq \\(ha\\(ti");
  EXPECT_EQ(roff("see `xffl status`."), "see \\fBxffl status\\fR.");
  EXPECT_EQ(roff("one ` alone"), "one \\(ga alone");
  EXPECT_EQ(roff("1 € è"), "1 \\[u20AC] \\[u00E8]");
  EXPECT_EQ(roff("\x1b[2J\t\x7f"), " [2J  ");
  EXPECT_EQ(roff("\xff"), "?");
}

TEST(ManPage, OfHostileHelpTextsShowsThem) {
  CLI::App app{"tests", "x"};
  CLI::App* command = app.add_subcommand("c", ".so /etc/passwd \\fBnot bold\\fR");
  std::string text;
  command->add_option("--value", text, "'tmac with \\[u20AC] and -x")->required();
  command->footer(".TH a\n\n'de b");
  command->group("Commands");
  const std::string page = man_pages(app, kExitCodes).at("x-c.1");
  EXPECT_THAT(page, Not(HasSubstr("\n.so")));
  const ProcessResult shown = run_process(
      {.argv = {"sh", "-c",
                "command -v groff >/dev/null || exit 99; exec groff -ww -man -Tascii -P-cbou"},
       .stdin_text = page,
       .timeout = std::chrono::seconds(60)});
  if (shown.exit_code == 99) GTEST_SKIP() << "groff is not installed";
  EXPECT_EQ(shown.err, "");
  EXPECT_THAT(shown.out, HasSubstr(".so /etc/passwd \\fBnot bold\\fR"));
  EXPECT_THAT(shown.out, HasSubstr("'tmac with \\[u20AC] and -x. Required."));
  EXPECT_THAT(shown.out, HasSubstr("--value TEXT"));
  EXPECT_THAT(shown.out, HasSubstr(".TH a\n\n       'de b"));
}

TEST(ManPage, HasTheTableOfExitCodes) {
  CLI::App app{"tests", "x"};
  const std::string page = man_pages(app, kExitCodes).at("x.1");
  EXPECT_THAT(page,
              HasSubstr(".SH EXIT STATUS\n.TP\n\\fB0\\fR\nFine.\n.TP\n\\fB3\\fR (config)\nEdit "
                        "\\fBx.yaml\\fR, see the page.\n.PP\nA last sentence.\n.SH SEE ALSO\n"));
  EXPECT_THAT(page, Not(HasSubstr("Never")));
  CLI::App other{"tests", "x-train"};
  EXPECT_THAT(man_pages(other, kExitCodes).at("x-train.1"),
              HasSubstr("EXIT STATUS\n.PP\nFirst.\n"));
  CLI::App unknown{"tests", "y"};
  EXPECT_THROW(man_pages(unknown, kExitCodes), Error);
}

TEST(ManPage, LeavesOutHiddenCommandsAndOptions) {
  CLI::App app{"tests", "x"};
  bool secret = false;
  app.add_subcommand("shown", "is shown")->add_flag("--secret", secret, "is hidden")->group("");
  app.add_subcommand("hidden", "is hidden")->group("");
  const auto pages = man_pages(app, kExitCodes);
  EXPECT_EQ(pages.size(), 2u);
  EXPECT_THAT(pages.at("x-shown.1"), Not(HasSubstr("hidden")));
  EXPECT_THAT(pages.at("x.1"), Not(HasSubstr("hidden")));
}

}  // namespace
}  // namespace xffl::manual
