#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/config/load.h"

namespace xffl::config {
namespace {

TEST(JsonSchema, IsStrictAndCarriesDefaultsAndRanges) {
  const Json schema = parse_json(json_schema(), "schema", {.max_depth = 64});
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["required"], Json::array({"project", "model", "facilities"}));
  const Json& training = schema["properties"]["training"]["properties"];
  EXPECT_EQ(training["batch_size"]["default"], 8);
  EXPECT_EQ(training["batch_size"]["minimum"], 1);
  EXPECT_EQ(training["learning_rate"]["default"], 1e-5);
  EXPECT_EQ(training["beta1"]["exclusiveMaximum"], 1);
  EXPECT_EQ(training["precision"]["enum"], Json::array({"fp32", "bf16", "fp16"}));
  const Json& facility = schema["properties"]["facilities"]["additionalProperties"];
  EXPECT_EQ(facility["required"], Json::array({"data"}));
  EXPECT_EQ(facility["properties"]["access"]["default"], "local");
}

TEST(JsonSchema, TakesTheDurationsThatTheParserTakes) {
  const Json schema = parse_json(json_schema(), "schema", {.max_depth = 64});
  const Json& deadline = schema["properties"]["policy"]["properties"]["deadline"];
  const std::string pattern(deadline["anyOf"][0]["pattern"].get<std::string>());
  // format_experiment writes 0s for none.
  for (const char* good : {"0s", "30s", "24h", "7 d", "1500ms"})
    EXPECT_THAT(good, testing::MatchesRegex(pattern));
  for (const char* bad : {"24", "h", "010s", "-1s", "1.5h", "24H", "1  s"})
    EXPECT_THAT(bad, testing::Not(testing::MatchesRegex(pattern)));
}

/// Every path of keys through the schema's sections.
void walk(const Json& schema, const std::string& path, std::vector<std::string>& keys) {
  if (!schema.contains("properties")) return;
  for (const auto& [name, inner] : schema["properties"].items()) {
    keys.push_back(path + name);
    EXPECT_TRUE(inner.contains("description")) << path << name;
    walk(inner, path + name + ".", keys);
  }
}

TEST(JsonSchema, AKeyThatItNamesIsKnownToTheParser) {
  std::vector<std::string> keys;
  walk(parse_json(json_schema(), "schema", {.max_depth = 64}), "", keys);
  EXPECT_GT(keys.size(), 30u);
  for (const std::string& key : keys) {
    std::string yaml;
    size_t indent = 0;
    for (size_t begin = 0; begin <= key.size(); indent += 2) {
      const size_t end = std::min(key.find('.', begin), key.size());
      yaml += std::string(indent, ' ') + key.substr(begin, end - begin) + ":\n";
      begin = end + 1;
    }
    try {
      parse_experiment(yaml, "f", "/p");
      FAIL() << yaml;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("unknown key"))) << yaml;
      EXPECT_THAT(error.what(), testing::HasSubstr("has no value")) << yaml;
    }
  }
}

TEST(KeyReference, IsTheOneInTheDocumentation) {
  const std::filesystem::path page =
      std::filesystem::path(XFFL_SOURCE_DIR) / "docs/reference/configuration_keys.md";
  const std::string text = read_file(page, 1 << 20);
  const std::string open = "<!-- keys: begin -->\n", close = "<!-- keys: end -->";
  const size_t begin = text.find(open), end = text.find(close);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const size_t start = begin + open.size();
  if (std::getenv("XFFL_ACCEPT") != nullptr)
    write_file_atomic(page, text.substr(0, start) + key_reference() + text.substr(end), 0644);
  else
    EXPECT_EQ(text.substr(start, end - start), key_reference())
        << "XFFL_ACCEPT=1 rewrites docs/reference/configuration_keys.md";
}

}  // namespace
}  // namespace xffl::config
