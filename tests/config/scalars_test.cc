#include "scalars.h"

#include <gtest/gtest.h>

#include <random>

namespace xffl::config {
namespace {

using std::chrono::milliseconds;

TEST(Scalars, IntegersAreDecimalDigitsOnly) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("-7"), -7);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  for (const char* bad : {"", "-", "+1", "010", "-01", "0x1f", "0o17", "1_000", "1,000", "1.0",
                          "1e3", " 1", "1 ", "9223372036854775808", "no", "true"})
    EXPECT_FALSE(parse_integer(bad)) << bad;
}

TEST(Scalars, NumbersAreFinite) {
  EXPECT_EQ(parse_number("8e-4"), 8e-4);
  EXPECT_EQ(parse_number("-1.5E+3"), -1500);
  EXPECT_EQ(parse_number("3"), 3);
  for (const char* bad : {"", ".5", "5.", "01.5", "1e", "1e+", "inf", ".inf", "nan", "1e999",
                          "0x1p3", "1 ", "1,5", "--1"})
    EXPECT_FALSE(parse_number(bad)) << bad;
}

TEST(Scalars, OnlyTrueAndFalseAreBooleans) {
  EXPECT_EQ(parse_boolean("true"), true);
  EXPECT_EQ(parse_boolean("false"), false);
  for (const char* bad : {"yes", "no", "on", "off", "True", "FALSE", "1", "0", "y", "n", ""})
    EXPECT_FALSE(parse_boolean(bad)) << bad;
}

TEST(Scalars, DurationsAndSizesHaveUnits) {
  EXPECT_EQ(parse_duration("0"), milliseconds(0));
  EXPECT_EQ(parse_duration("500ms"), milliseconds(500));
  EXPECT_EQ(parse_duration("30s"), milliseconds(30'000));
  EXPECT_EQ(parse_duration("5 m"), milliseconds(300'000));
  EXPECT_EQ(parse_duration("24h"), parse_duration("1d"));
  EXPECT_EQ(parse_size("512MB"), 512'000'000);
  EXPECT_EQ(parse_size("7 B"), 7);
  EXPECT_EQ(parse_size("3kB"), 3000);
  EXPECT_EQ(parse_size("3KiB"), 3 << 10);
  EXPECT_EQ(parse_size("3MiB"), 3 << 20);
  EXPECT_EQ(parse_size("1GiB"), 1 << 30);
  EXPECT_EQ(parse_size("2TB"), 2'000'000'000'000);
  EXPECT_EQ(parse_size("2TiB"), int64_t{2} << 40);
  for (const char* bad : {"", "30", "s", "1h30m", "1.5h", "-1s", "010s", "5  m", "5 min", "5S",
                          "9223372036854775807d"})
    EXPECT_FALSE(parse_duration(bad)) << bad;
  for (const char* bad : {"512", "512Mb", "512mb", "1G", "-1MB", "9223372036854775807kB"})
    EXPECT_FALSE(parse_size(bad)) << bad;
}

TEST(Scalars, FormattedValuesAreReadBack) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 10'000; ++trial) {
    const double number =
        std::ldexp(static_cast<double>(random() >> 11), -static_cast<int>(random() % 200));
    ASSERT_EQ(parse_number(format_number(number)), number) << format_number(number);
    const auto amount = static_cast<int64_t>(random() % 10'000'000'000);
    ASSERT_EQ(parse_duration(format_duration(milliseconds(amount))), milliseconds(amount));
    ASSERT_EQ(parse_size(format_size(amount)), amount) << format_size(amount);
  }
  EXPECT_EQ(format_duration(milliseconds(86'400'000)), "1d");
  EXPECT_EQ(format_duration(milliseconds(0)), "0s");
  EXPECT_EQ(format_size(3 << 20), "3MiB");
}

}  // namespace
}  // namespace xffl::config
