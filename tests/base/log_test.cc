#include "xffl/base/log.h"

#include <gtest/gtest.h>

#include <regex>

#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

TEST(Printable, EscapesWhatCouldSteerATerminal) {
  EXPECT_EQ(log::printable("a\x1b[31mb\n"), "a\\x1B[31mb\\x0A");
  EXPECT_EQ(log::printable("\xc2\x9b"), "\\xC2\\x9B");  // C1 control sequence introducer
  EXPECT_EQ(log::printable("perch\xc3\xa9"), "perch\xc3\xa9");
  EXPECT_EQ(log::printable("\xff\xfe"), "\\xFF\\xFE");
  EXPECT_EQ(log::printable("abcdef", 3), "abc...");
}

TEST(LogFile, HoldsOneJsonObjectPerEventWhateverTheFieldsHold) {
  test::TempDir dir;
  log::set_console_level(log::Level::kOff);
  log::set_file(dir.path() / "log");
  log::info("something happened", {{"text", "two\nlines \xff"}, {"count", 3}, {"ok", true}});
  log::debug("detail");
  log::set_file({});
  const std::string text = read_file(dir.path() / "log", 10000);
  ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  const Json line = parse_json(text.substr(0, text.find('\n')), "log");
  EXPECT_EQ(line["event"], "something happened");
  EXPECT_EQ(line["count"], 3);
  EXPECT_EQ(line["ok"], true);
}

TEST(LogConsole, IsALineForPeopleFromItsLevelOn) {
  log::set_console_level(log::Level::kWarning);
  testing::internal::CaptureStderr();
  log::info("not shown");
  log::warning("disk nearly full", {{"path", "/a b"}, {"left", 3}, {"sure", true}});
  const std::string text = testing::internal::GetCapturedStderr();
  log::set_console_level(log::Level::kOff);
  EXPECT_TRUE(std::regex_match(
      text, std::regex("[0-2][0-9]:[0-5][0-9]:[0-6][0-9] warning disk nearly full  path=\"/a b\"  "
                       "left=3  sure=true\n")))
      << text;
}

}  // namespace
}  // namespace xffl
