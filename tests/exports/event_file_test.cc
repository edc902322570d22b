#include "event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace xffl::exports {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

TEST(Crc32c, HasTheValuesOfTheStandard) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
}

// The first record of a file of 2026-03-01, byte by byte.
TEST(EventFile, FramesARecord) {
  const std::string record = version_record(1772366400);
  const std::string data = "\x09\x00\x00\x00\x90\x0a\x69\xda\x41\x1a\x0d"s + "brain.Event:2";
  ASSERT_EQ(record.size(), 8 + 4 + data.size() + 4);
  EXPECT_EQ(record.substr(0, 8), "\x18\0\0\0\0\0\0\0"s);
  EXPECT_EQ(record.substr(12, data.size()), data);
  // The masked CRC of the length, by a bit-by-bit CRC in another program.
  EXPECT_EQ(record.substr(8, 4), "\xa3\x7f\x4b\x22"s);
}

TEST(EventFile, LeavesOutValuesWithoutAFloat) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(scalars_record(1, 2, {}), "");
  EXPECT_EQ(scalars_record(1, 2, {{"a", std::nan("")}, {"b", inf}, {"c", 1e300}}), "");
  EXPECT_EQ(scalars_record(1, 2, {{"a", std::nan("")}, {"loss", 2.5}}),
            scalars_record(1, 2, {{"loss", 2.5}}));
}

TEST(EventFile, WritesLongNumbersAsVarints) {
  // Step 2^53 takes 8 bytes: seven groups of 7 zero bits, and a 16.
  EXPECT_THAT(scalars_record(0, int64_t{1} << 53, {{"x", 1}}),
              HasSubstr("\x10\x80\x80\x80\x80\x80\x80\x80\x10"s));
  EXPECT_THAT(scalars_record(0, 127, {{"x", 1}}), HasSubstr("\x10\x7f\x2a"s));
  EXPECT_THAT(scalars_record(0, 128, {{"x", 1}}), HasSubstr("\x10\x80\x01\x2a"s));
  const std::string tag(300, 't');  // a length of two bytes
  EXPECT_THAT(scalars_record(0, 0, {{tag, 1}}), HasSubstr("\x0a\xac\x02"s + tag));
}

}  // namespace
}  // namespace xffl::exports
