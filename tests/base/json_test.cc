#include "xffl/base/json.h"

#include <gtest/gtest.h>

#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl {
namespace {

std::string error_of(const std::function<void()>& body) {
  return test::message_of(ErrorKind::kCorrupt, body);
}

TEST(ParseJson, RejectsDuplicateKeysAtAnyLevel) {
  EXPECT_NE(
      error_of([] { parse_json(R"({"a":{"b":1,"b":2}})", "x.json"); }).find("'b' appears twice"),
      std::string::npos);
  EXPECT_NO_THROW(parse_json(R"({"a":{"b":1},"c":{"b":2}})", "x.json"));
}

TEST(ParseJson, BoundsDepthAndSize) {
  const std::string deep = std::string(40, '[') + std::string(40, ']');
  EXPECT_NE(error_of([&] { parse_json(deep, "x.json"); }).find("deeper"), std::string::npos);
  EXPECT_NO_THROW(parse_json("[[1]]", "x", {100, 2}));
  EXPECT_NO_THROW(parse_json("[{},[],{},[]]", "x", {100, 2})) << "neighbours are no levels";
  EXPECT_NE(error_of([] {
              parse_json("[[[1]]]", "x", {100, 2});
            }).find("deeper"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_json("[1,2,3]", "x", {3, 2}); }).find("bytes"), std::string::npos);
}

TEST(ParseJson, RejectsAMillionNestedBrackets) {
  EXPECT_NE(error_of([] { parse_json(std::string(1000000, '['), "x.json"); }).find("deeper"),
            std::string::npos);
}

TEST(ParseJson, RejectsNumbersThatOverflow) {
  EXPECT_NE(error_of([] { parse_json(R"({"f":1e400})", "x.json"); }).find("overflow"),
            std::string::npos);
}

TEST(ParseJson, RejectsTextWithANul) {
  EXPECT_NE(error_of([] { parse_json(std::string_view("{}\0garbage", 10), "x.json"); }).find("NUL"),
            std::string::npos);
}

TEST(ParseJson, BoundsTheNumberOfKeysPerObject) {
  std::string many = "{";
  for (int i = 0; i < 5000; ++i) many += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_NE(error_of([&] { parse_json(many + "}", "x.json"); }).find("more than 4096 keys"),
            std::string::npos);
}

TEST(ParseJson, ErrorNamesOriginAndByte) {
  const std::string message = error_of([] { parse_json(R"({"a":})", "x.json"); });
  EXPECT_NE(message.find("x.json"), std::string::npos);
  EXPECT_NE(message.find("byte 6"), std::string::npos);
  error_of([] { parse_json("{} {}", "x.json"); });
  error_of([] { parse_json("", "x.json"); });
  error_of([] { parse_json("\"\xff\xfe\"", "x.json"); });
}

TEST(JsonObject, ReadsTypedValuesAndNamesTheKeyPathInErrors) {
  const Json json = parse_json(R"({"n":{"i":3,"s":"x","u":18446744073709551615}})", "x.json");
  JsonObject root(json, "x.json");
  JsonObject inner = root.object("n");
  EXPECT_EQ(inner.integer("i"), 3);
  EXPECT_EQ(inner.string("s"), "x");
  EXPECT_NE(error_of([&] { inner.integer("u"); }).find("x.json: n: 'u'"), std::string::npos);
  EXPECT_NE(error_of([&] { inner.integer("i", 5, 9); }).find("5 .. 9"), std::string::npos);
  EXPECT_NE(error_of([&] { inner.string("i"); }).find("should be a string"), std::string::npos);
  EXPECT_NE(error_of([&] { inner.integer("zz"); }).find("is missing"), std::string::npos);
}

TEST(JsonObject, RejectsKeysThatTheCallerHasNotRead) {
  const Json json = parse_json(R"({"a":1,"b":2})", "x.json");
  JsonObject object(json, "x.json");
  object.integer("a");
  EXPECT_NE(error_of([&] { object.reject_unknown_keys(); }).find("unknown key 'b'"),
            std::string::npos);
  EXPECT_EQ(object.integer_or("b", 7), 2);
  EXPECT_EQ(object.integer_or("c", 7), 7);
  EXPECT_NO_THROW(object.reject_unknown_keys());
}

}  // namespace
}  // namespace xffl
