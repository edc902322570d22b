// tokenizer.json with byte fallback, as Llama 2's: the ids of HF's tokenizers (data/llama2, made by
// hf_same_bpe.py), and rejected settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

fs::path data() { return fs::path(XFFL_SOURCE_DIR) / "tests/tokenize/data/llama2"; }

TEST(ByteFallback, EncodesAndDecodesAsHf) {
  const Tokenizer tokenizer(data());
  EXPECT_EQ(tokenizer.bos_id(), 1) << "from the post-processor";
  std::ifstream file(data() / "cases.jsonl");
  size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Json json = parse_json(line, "cases.jsonl");
    const std::string text = json["text"];
    const Ids expected = json["ids"];
    EXPECT_EQ(tokenizer.encode(text), expected) << text;
    EXPECT_EQ(tokenizer.decode(expected), json["decoded"].get<std::string>()) << text;
    Ids ids;
    size_t covered = 0;
    for (const TokenSpan& span : tokenizer.encode_spans(text)) {
      ids.push_back(span.id);
      EXPECT_EQ(span.begin, covered) << text;
      EXPECT_GE(span.end, span.begin) << text;
      covered = span.end;
    }
    EXPECT_EQ(ids, expected) << text;
    EXPECT_EQ(covered, text.size()) << text;
  }
  EXPECT_GT(count, 80u);
}

// hf_same_bpe.py compares whole texts with HF.
TEST(ByteFallback, MetaspaceAddsASpaceByItsScheme) {
  const auto encode = [](const char* scheme, const std::string& text) {
    const test::TempDir dir;
    Json json = Json::parse(read_file(data() / "tokenizer.json", 1 << 20));
    json["normalizer"] = nullptr;
    json["pre_tokenizer"] = {{"type", "Metaspace"},
                             {"replacement", "\u2581"},
                             {"prepend_scheme", scheme},
                             {"split", false}};
    std::ofstream(dir / "tokenizer.json") << json.dump();
    return Tokenizer(dir / "tokenizer.json").encode(text);
  };
  const Ids with_space = encode("never", " casa"), without = encode("never", "casa");
  EXPECT_NE(with_space, without);
  for (const char* scheme : {"always", "first"}) {
    EXPECT_EQ(encode(scheme, "casa"), with_space) << scheme;
    EXPECT_EQ(encode(scheme, " casa"), with_space) << scheme << " adds no second space";
  }
  EXPECT_EQ(encode("always", "<|pad|>casa"), encode("never", "<|pad|> casa"));
  EXPECT_EQ(encode("first", "<|pad|>casa"), encode("never", "<|pad|>casa"));
}

TEST(ByteFallback, ADecoderWithoutStripKeepsTheFirstSpace) {
  const test::TempDir dir;
  Json json = Json::parse(read_file(data() / "tokenizer.json", 1 << 20));
  json["decoder"]["decoders"].erase(3);
  std::ofstream(dir / "tokenizer.json") << json.dump();
  const Tokenizer tokenizer(dir / "tokenizer.json");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("casa")), " casa");
}

TEST(ByteFallback, NamesUnsupportedSettings) {
  const auto rejected = [](const std::string& part, const std::function<void(Json&)>& change) {
    const test::TempDir dir;
    Json json = Json::parse(read_file(data() / "tokenizer.json", 1 << 20));
    change(json);
    std::ofstream(dir / "tokenizer.json") << json.dump();
    const test::Thrown thrown = test::thrown_by([&] { Tokenizer{dir / "tokenizer.json"}; });
    EXPECT_EQ(thrown.kind, ErrorKind::kUnsupported) << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr(part));
  };
  rejected("'Lowercase'", [](Json& json) { json["normalizer"] = {{"type", "Lowercase"}}; });
  rejected("'Sequence'", [](Json& json) { json["normalizer"]["normalizers"].erase(1); });
  rejected("'Sequence'", [](Json& json) { json["normalizer"]["normalizers"][1]["content"] = "_"; });
  rejected("none", [](Json& json) { json["normalizer"] = nullptr; });
  rejected("'Metaspace'", [](Json& json) {
    json["normalizer"] = nullptr;
    json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  });
  rejected("both", [](Json& json) { json["pre_tokenizer"] = {{"type", "Metaspace"}}; });
  rejected("'Sequence'", [](Json& json) { json["decoder"]["decoders"].erase(1); });
  rejected("'Strip'", [](Json& json) { json["decoder"]["decoders"][3]["start"] = 2; });
  rejected("decoder null", [](Json& json) { json.erase("decoder"); });
  rejected("normalized", [](Json& json) { json["added_tokens"][1]["normalized"] = true; });
  rejected("ignore_merges", [](Json& json) { json["model"]["ignore_merges"] = true; });
  rejected("byte 65", [](Json& json) {
    const int id = json["model"]["vocab"]["<0x41>"];
    json["model"]["vocab"].erase("<0x41>");
    json["model"]["vocab"]["<0xgg>"] = id;
  });
}

}  // namespace
}  // namespace xffl::tokenize
