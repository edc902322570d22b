#include "xffl/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <limits>
#include <regex>
#include <sstream>

#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(log::printable("a\x1b[31mb\n"), "a\\x1B[31mb\\x0A");
  EXPECT_EQ(log::printable("\xc2\x9b"), "\\xC2\\x9B");  // C1 control sequence introducer
  EXPECT_EQ(log::printable("perch\xc3\xa9"), "perch\xc3\xa9");
  EXPECT_EQ(log::printable("\xff\xfe"), "\\xFF\\xFE");
  EXPECT_EQ(log::printable("abcdef", 3), "abc...");
}

// Job output passes printable() on its way into the journal, whose JSON accepts only UTF-8.
TEST(Printable, ReturnsValidUtf8ForAnyBytes) {
  EXPECT_EQ(log::printable("\xed\xa0\x80"), "\\xED\\xA0\\x80") << "a surrogate";
  EXPECT_EQ(log::printable("\xe0\x80\x9b"), "\\xE0\\x80\\x9B") << "an overlong escape";
  EXPECT_EQ(log::printable("\xf5\x80\x80\x80"), "\\xF5\\x80\\x80\\x80");
  for (unsigned first = 0; first < 256; ++first)
    for (unsigned second = 0; second < 256; ++second) {
      const std::string bytes{static_cast<char>(first), static_cast<char>(second), '\x80', '\x80'};
      EXPECT_NO_THROW(Json(log::printable(bytes)).dump()) << first << " " << second;
    }
}

TEST(Printable, EscapesBidirectionalControls) {
  EXPECT_EQ(log::printable("a\u202eb"), "a\\xE2\\x80\\xAEb");
  EXPECT_EQ(log::printable("a\u2066b"), "a\\xE2\\x81\\xA6b");
  EXPECT_EQ(log::printable("\u2026 \u20ac \u061c"), "\u2026 \u20ac \\xD8\\x9C");
}

TEST(LogFile, ResumesAfterAFullDiskHasSpaceAgain) {
  log::set_console_level(log::Level::kOff);
  test::TempDir dir;
  log::set_file(dir.path() / "log");
  log::info("before");
  // RLIMIT_FSIZE stands for a full disk: write() fails, also in the middle of a line.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{std::filesystem::file_size(dir.path() / "log") + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  log::info("lost");
  log::info("lost as well");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  log::info("after");
  log::set_file({});
  std::vector<std::string> lines;
  std::istringstream text(read_file(dir.path() / "log", 10000));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(parse_json(lines.back(), "log")["event"], "after");
}

TEST(LogFile, HoldsOneJsonObjectPerEventForAnyFieldText) {
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

TEST(LogFile, CreatesFilesWithMode0600) {
  const test::TempDir dir;
  const mode_t before = ::umask(0);
  log::set_file(dir / "log");
  ::umask(before);
  log::set_file({});
  struct stat info {};
  ASSERT_EQ(::stat((dir / "log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST(LogFile, HoldsNoSecrets) {
  test::TempDir dir;
  log::set_console_level(log::Level::kOff);
  log::set_file(dir.path() / "log");
  log::info("job ended", {{"error", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwx was refused"}});
  log::set_file({});
  const Json line = parse_json(read_file(dir.path() / "log", 10000), "log");
  EXPECT_EQ(line["error"], "HF_TOKEN=[removed] was refused");
}

TEST(LogConsole, ShowsOneReadableLinePerEventFromItsLevel) {
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

TEST(LogConsole, ShowsNoSecretsAndNoControlCharacters) {
  log::set_console_level(log::Level::kInfo);
  testing::internal::CaptureStderr();
  log::info("job ended", {{"error", "\x1b[2J\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwx"}});
  const std::string text = testing::internal::GetCapturedStderr();
  log::set_console_level(log::Level::kOff);
  EXPECT_THAT(text, testing::EndsWith("  error=\\x1B[2J\\x0AHF_TOKEN=[removed]\n"));
}

TEST(LogConsole, ShowsNumbersWithSixSignificantDigits) {
  log::set_console_level(log::Level::kInfo);
  testing::internal::CaptureStderr();
  log::info("{}", {{"a", 0.1},
                   {"b", 1234567.0},
                   {"c", -1e-7},
                   {"d", 100000.0},
                   {"e", std::numeric_limits<double>::infinity()},
                   {"f", INT64_MIN},
                   {"g", ""}});
  const std::string text = testing::internal::GetCapturedStderr();
  log::set_console_level(log::Level::kOff);
  EXPECT_THAT(text, testing::EndsWith(" info {}  a=0.1  b=1.23457e+06  c=-1e-07  d=100000  e=inf  "
                                      "f=-9223372036854775808  g=\"\"\n"));
}

}  // namespace
}  // namespace xffl
