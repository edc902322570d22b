// tokenizer.json: the ids of HF's tokenizers (data/bpe, made by hf_same_bpe.py), and rejected
// settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <thread>

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

const fs::path& data() {
  static const fs::path folder = fs::path(XFFL_SOURCE_DIR) / "tests/tokenize/data/bpe";
  return folder;
}

struct Case {
  std::string text;
  Ids ids;
  std::string decoded;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> result;
    std::ifstream file(data() / "cases.jsonl");
    for (std::string line; std::getline(file, line);) {
      const Json json = parse_json(line, "cases.jsonl");
      result.push_back({json["text"], json["ids"], json["decoded"]});
    }
    return result;
  }();
  return all;
}

class Bpe : public testing::Test {
 protected:
  static void SetUpTestSuite() { tokenizer_ = new Tokenizer(data()); }
  static void TearDownTestSuite() { delete tokenizer_; }

  static Json golden() { return Json::parse(read_file(data() / "tokenizer.json", 1 << 20)); }
  fs::path save(const Json& json) const { return save(json.dump()); }
  fs::path save(const std::string& text) const {
    std::ofstream(dir_ / "tokenizer.json", std::ios::binary) << text;
    return dir_ / "tokenizer.json";
  }
  /// Expects an error for a changed golden tokenizer.
  void expect_rejected(ErrorKind kind, const std::string& part, const Json& json) const {
    const test::Thrown thrown = test::thrown_by([&] { Tokenizer{save(json)}; });
    EXPECT_EQ(thrown.kind, kind) << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr(part));
    EXPECT_THAT(thrown.message, HasSubstr("tokenizer.json"));
  }

  static Tokenizer* tokenizer_;
  test::TempDir dir_;
};
Tokenizer* Bpe::tokenizer_ = nullptr;

TEST_F(Bpe, EncodesAndDecodesAsHf) {
  ASSERT_GT(cases().size(), 100u);
  EXPECT_EQ(tokenizer_->vocab_size(), 429u);
  EXPECT_EQ(tokenizer_->bos_id(), 420);
  EXPECT_EQ(tokenizer_->eos_id(), 421);
  for (const Case& each : cases()) {
    EXPECT_EQ(tokenizer_->encode(each.text), each.ids) << each.text;
    EXPECT_EQ(tokenizer_->decode(each.ids), each.decoded) << each.text;
  }
}

TEST_F(Bpe, AnAddedTokenMayBeginAnother) {
  Json json = golden();
  Json token = json["added_tokens"].back();
  const int id = token["id"].get<int>() + 1;
  const auto add = [&](int new_id, const char* content) {
    token.update({{"id", new_id}, {"content", content}, {"special", true}, {"normalized", false}});
    token.update({{"single_word", false}, {"lstrip", false}, {"rstrip", false}});
    json["added_tokens"].push_back(token);
  };
  add(id, "<|longer|>");
  add(id + 1, "<|long");  // the shorter one is added last
  const Tokenizer tokenizer(save(json));
  const auto without_bos = [&](const std::string& text) {
    Ids ids = tokenizer.encode(text);
    if (!ids.empty() && ids[0] == tokenizer.bos_id()) ids.erase(ids.begin());
    return ids;
  };
  EXPECT_EQ(without_bos("<|long<|longer|><|long"), (Ids{id + 1, id, id + 1}));
}

TEST_F(Bpe, ANormalizedControlTokenStaysTextInAMessage) {
  Json json = golden();
  Json token = json["added_tokens"].back();
  const int id = token["id"].get<int>() + 1;
  token["id"] = id;
  token["content"] = "<|turn|>";
  token["special"] = token["normalized"] = true;
  json["added_tokens"].push_back(token);
  const Tokenizer tokenizer(save(json));
  const std::vector<ByteRange> message{{8, 16}};
  std::vector<uint32_t> places;
  for (const TokenSpan& each :
       tokenizer.encode_with_controls("<|pad|>a<|turn|>b<|turn|>", message)) {
    if (each.id == id) places.push_back(each.begin);
  }
  EXPECT_EQ(places, std::vector<uint32_t>{17}) << "the token after the message";
}

TEST_F(Bpe, SpansHaveTheSameIdsAndCoverTheText) {
  for (const Case& each : cases()) {
    Ids ids;
    size_t covered = 0;
    for (const TokenSpan& span : tokenizer_->encode_spans(each.text)) {
      ids.push_back(span.id);
      EXPECT_EQ(span.begin, covered) << each.text;
      EXPECT_GT(span.end, span.begin) << each.text;
      covered = span.end;
    }
    EXPECT_EQ(ids, each.ids) << each.text;
    EXPECT_EQ(covered, each.text.size()) << each.text;
  }
}

TEST_F(Bpe, SpansLeaveOutTheAddedSpace) {
  Json json = golden();
  json["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}};
  const std::vector<TokenSpan> spans = Tokenizer(save(json)).encode_spans("la stazione");
  EXPECT_EQ(spans.front().begin, 0u);
  EXPECT_EQ(spans.front().end, 2u);
  EXPECT_EQ(spans.back().end, 11u);
}

// HF gives the same ids for the changed tokenizer.
TEST_F(Bpe, DropsAByteWithoutATokenBeforeMerging) {
  Json json = golden();
  Json& vocab = json["model"]["vocab"];
  vocab["ZZ"] = vocab["Z"];
  vocab.erase("Z");
  const Tokenizer tokenizer(save(json));
  const std::string text = "Zla staZzZione Z<|pad|>Z la";
  EXPECT_EQ(tokenizer.encode(text), tokenizer_->encode("la stazione <|pad|> la"));
  EXPECT_TRUE(tokenizer.encode("Z").empty());
  Ids ids;
  for (const TokenSpan& span : tokenizer.encode_spans(text)) {
    ids.push_back(span.id);
    if (span.id == 422) continue;  // <|pad|>
    std::string bytes = text.substr(span.begin, span.end - span.begin);
    EXPECT_NE(bytes.front(), 'Z');
    std::erase(bytes, 'Z');
    EXPECT_EQ(bytes, tokenizer.decode(Ids{span.id}));
  }
  EXPECT_EQ(ids, tokenizer.encode(text));
}

TEST_F(Bpe, ASequenceWithoutStepsIsNoStep) {
  Json json = golden();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  const Tokenizer tokenizer(save(json));
  for (const Case& each : cases()) EXPECT_EQ(tokenizer.encode(each.text), each.ids) << each.text;
  json["post_processor"] = {{"type", "Sequence"}, {"processors", Json::array()}};
  EXPECT_EQ(Tokenizer(save(json)).bos_id(), -1);
}

TEST_F(Bpe, NormalizesTextBetweenAddedTokens) {
  Json json = golden();
  json["normalizer"] = {{"type", "NFC"}};
  for (Json& token : json["added_tokens"]) token["normalized"] = false;
  const Tokenizer tokenizer(save(json));
  const std::string text = "xe\u0301<|pad|>\u212b perche\u0301!<|pad|>poi";
  EXPECT_EQ(tokenizer.encode(text),
            tokenizer.encode("x\u00e9<|pad|>\u00c5 perch\u00e9!<|pad|>poi"));
  EXPECT_EQ(tokenizer.encode_spans(text)[0].end, 1u) << "the x before a changed stretch";
  // A token of a changed stretch spans the stretch: "e" with its mark, and the sign of Angstrom.
  Ids ids;
  size_t covered = 0;
  for (const TokenSpan& span : tokenizer.encode_spans(text)) {
    ids.push_back(span.id);
    EXPECT_LE(span.begin, covered);
    EXPECT_GT(span.end, span.begin);
    covered = std::max<size_t>(covered, span.end);
    for (const size_t inside : {2, 3, 12, 13, 21, 22}) {
      EXPECT_NE(span.begin, inside);
      EXPECT_NE(span.end, inside);
    }
  }
  EXPECT_EQ(ids, tokenizer.encode(text));
  EXPECT_EQ(covered, text.size());
}

TEST_F(Bpe, EncodesTheSameInSeveralThreads) {
  std::vector<std::string> failures(4);
  {
    std::vector<std::jthread> threads;
    for (std::string& failure : failures) {
      threads.emplace_back([&failure] {
        for (int round = 0; round < 20; ++round) {
          for (const Case& each : cases()) {
            if (tokenizer_->encode(each.text) != each.ids) failure = each.text;
          }
        }
      });
    }
  }
  EXPECT_THAT(failures, testing::Each(""));
}

TEST_F(Bpe, EncodesWordsOfManySymbols) {
  // Too many symbols for the scan: the merges use the heap.
  for (const std::string unit : {"a", "ab", "stazione", "\xc3\xa9", "="}) {
    std::string text;
    while (text.size() < 100000) text += unit;
    const Ids ids = tokenizer_->encode(text);
    EXPECT_EQ(tokenizer_->decode(ids), text);
    EXPECT_LE(ids.size(), text.size());
  }
}

// Many of the words share an entry of the cache of recent words.
TEST_F(Bpe, EncodesManyWordsOfOneLength) {
  std::string text;
  for (int i = 0; i < 8000; ++i) {
    text += " x";
    for (int rest = i, letter = 0; letter < 4; ++letter, rest /= 26)
      text += static_cast<char>('a' + rest % 26);
  }
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text)), text);
}

TEST_F(Bpe, RejectsTextThatIsNotUtf8) {
  for (const std::string bad : {"\xff", "a\xc3", "\xed\xa0\x80", "ok \xf5\x80\x80\x80"}) {
    const test::Thrown thrown = test::thrown_by([&] { tokenizer_->encode(bad); });
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    EXPECT_THAT(thrown.message, HasSubstr("not UTF-8 at byte"));
  }
  EXPECT_THAT(tokenizer_->decode(Ids{127, 64}), testing::EndsWith("\xef\xbf\xbd"
                                                                  "a"))
      << "half a character becomes U+FFFD";
}

TEST_F(Bpe, AcceptsMergesAsPairsAndPatternsAsStrings) {
  Json json = golden();
  for (Json& merge : json["model"]["merges"]) {
    if (!merge.is_string()) continue;
    const std::string text = merge;
    merge = Json::array({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
  }
  EXPECT_EQ(Tokenizer(save(json)).encode(cases()[40].text), cases()[40].ids);
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "+"}};
  const Tokenizer by_plus(save(json));
  EXPECT_GT(by_plus.encode("a+b").size(), 2u);
  EXPECT_EQ(by_plus.decode(by_plus.encode("a+b  c")), "a+b  c");
}

TEST_F(Bpe, WithIgnoreMergesAWordOfTheVocabularyIsOneToken) {
  Json json = golden();
  Json& model = json["model"];
  ASSERT_EQ(model["merges"].back(), Json::array({"g", "na"}));
  model["merges"].erase(model["merges"].size() - 1);  // no other merge makes "gna"
  EXPECT_EQ(Tokenizer(save(json)).encode("gna").size(), 1u);
  model["ignore_merges"] = false;
  EXPECT_EQ(Tokenizer(save(json)).encode("gna").size(), 2u);
}

TEST_F(Bpe, ANegatedCategoryMatchesAllOtherCharacters) {
  const auto encode = [&](const char* pattern) {
    Json json = golden();
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
    return Tokenizer(save(json)).encode("la stazione 12");
  };
  EXPECT_EQ(encode("\\P{L}"), encode("[^\\p{L}]"));
  EXPECT_NE(encode("\\P{L}"), encode("\\p{L}"));
}

// "425" is a token of the vocabulary.
TEST_F(Bpe, SplitsDigitsOneByOneOrTogether) {
  Json json = golden();
  Json& digits = json["pre_tokenizer"]["pretokenizers"][0];
  digits = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(Tokenizer(save(json)).encode("425"), (Ids{19, 17, 20}));
  digits["individual_digits"] = false;
  EXPECT_EQ(Tokenizer(save(json)).encode("425"), Ids{402});
}

// Files before tokenizers 0.13 lack the key.
TEST_F(Bpe, WithoutUseRegexTheWordsOfGpt2AreSplit) {
  Json json = golden();
  json["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  // The last merge becomes one of a digit and a letter, which are different words.
  Json& model = json["model"];
  const auto parts = model["merges"].back().get<std::vector<std::string>>();
  model["vocab"]["1a"] = model["vocab"][parts.at(0) + parts.at(1)];
  model["vocab"].erase(parts[0] + parts[1]);
  model["merges"].back() = {"1", "a"};
  const size_t without_key = Tokenizer(save(json)).encode("1a").size();
  json["pre_tokenizer"]["use_regex"] = true;
  EXPECT_EQ(without_key, Tokenizer(save(json)).encode("1a").size());
  json["pre_tokenizer"]["use_regex"] = false;
  EXPECT_EQ(without_key, Tokenizer(save(json)).encode("1a").size() + 1);
}

TEST_F(Bpe, LoadsTheTokenizerOfAFolder) {
  EXPECT_EQ(test::thrown_by([&] { Tokenizer{dir_.path()}; }).kind, ErrorKind::kNotFound);
  save(golden());
  EXPECT_EQ(Tokenizer(dir_.path()).vocab_size(), 429u);
  EXPECT_EQ(Tokenizer(dir_.path()).eos_id(), -1) << "without a tokenizer_config.json";
  // Llama 3 has a tokenizer.model in another format beside the tokenizer.json.
  std::ofstream(dir_ / "tokenizer.model") << "IQ== 0\nIg== 1\n";
  EXPECT_EQ(Tokenizer(dir_.path()).vocab_size(), 429u);
  const fs::path it = data().parent_path() / "it.txt";
  train({it}, dir_.path(), {.vocab_size = 400});
  EXPECT_EQ(Tokenizer(dir_.path()).vocab_size(), 400u) << "the SentencePiece model has precedence";
}

TEST_F(Bpe, ReadsBosAndEosFromTheTokenizerConfig) {
  save(golden());
  const auto config = [&](const std::string& text) {
    std::ofstream(dir_ / "tokenizer_config.json") << text;
    return test::thrown_by([&] { Tokenizer{dir_.path()}; });
  };
  EXPECT_THAT(config(R"({"eos_token": "<|no|>"})").message, HasSubstr("'<|no|>'"));
  EXPECT_EQ(config("[]").kind, ErrorKind::kCorrupt);
  config(R"({"eos_token": "<|pad|>"})");
  EXPECT_EQ(Tokenizer(dir_.path()).eos_id(), 422);
  Json json = golden();
  json["post_processor"] = nullptr;
  save(json);
  EXPECT_EQ(Tokenizer(dir_.path()).bos_id(), -1);
  config(R"({"bos_token": "<|begin_of_text|>"})");
  EXPECT_EQ(Tokenizer(dir_.path()).bos_id(), -1) << "add_bos_token is false by default";
  config(R"({"bos_token": "<|begin_of_text|>", "add_bos_token": true})");
  EXPECT_EQ(Tokenizer(dir_.path()).bos_id(), 420);
}

TEST_F(Bpe, BosAndEosOfThePostProcessorPrecedeThoseOfTheConfig) {
  Json json = golden();
  Json& step = json["post_processor"]["processors"][1];
  step["single"].push_back(Json{{"SpecialToken", {{"id", "<|pad|>"}, {"type_id", 0}}}});
  step["special_tokens"]["<|pad|>"] = {{"ids", Json::array({422})}};
  save(json);
  std::ofstream(dir_ / "tokenizer_config.json")
      << R"({"bos_token": "<|left|>", "add_bos_token": true, "eos_token": "<|end_of_text|>"})";
  const Tokenizer tokenizer(dir_.path());
  EXPECT_EQ(tokenizer.bos_id(), 420);
  EXPECT_EQ(tokenizer.eos_id(), 422);
}

TEST_F(Bpe, NamesUnsupportedSettings) {
  const auto unsupported = [&](const std::string& part, const std::string& pointer, Json value) {
    Json json = golden();
    json[Json::json_pointer(pointer)] = std::move(value);
    expect_rejected(ErrorKind::kUnsupported, part, json);
  };
  unsupported("normalizer 'NFKC'", "/normalizer", {{"type", "NFKC"}});
  unsupported("an added token that is normalized ('word')", "/normalizer", {{"type", "NFC"}});
  unsupported("model 'Unigram'", "/model/type", "Unigram");
  unsupported("model.ignore_merges with byte_fallback", "/model/byte_fallback", true);
  unsupported("model.end_of_word_suffix", "/model/end_of_word_suffix", "</w>");
  unsupported("model.dropout", "/model/dropout", 0.1);
  unsupported("pre_tokenizer null", "/pre_tokenizer", nullptr);
  unsupported("decoder null", "/decoder", nullptr);
  const auto no_steps = [](const char* list) {
    return Json{{"type", "Sequence"}, {list, Json::array()}};
  };
  unsupported("pre_tokenizer null", "/pre_tokenizer", no_steps("pretokenizers"));
  unsupported("decoder null", "/decoder", no_steps("decoders"));
  unsupported("pre_tokenizer that does not end in ByteLevel", "/pre_tokenizer",
              {{"type", "Metaspace"}});
  unsupported("pre_tokenizer 'Punctuation'", "/pre_tokenizer/pretokenizers/0",
              {{"type", "Punctuation"}});
  unsupported("behavior 'Removed'", "/pre_tokenizer/pretokenizers/0/behavior", "Removed");
  unsupported("add_prefix_space", "/pre_tokenizer/pretokenizers/1/add_prefix_space", true);
  unsupported("post_processor 'BertProcessing'", "/post_processor", {{"type", "BertProcessing"}});
  Json two_bos = golden()["post_processor"]["processors"][1]["single"];
  two_bos.insert(two_bos.begin(), Json(two_bos[0]));
  unsupported("a template of several tokens in a row", "/post_processor/processors/1/single",
              two_bos);
  unsupported("decoder 'Metaspace'", "/decoder", {{"type", "Metaspace"}});
  const std::string pattern = "/pre_tokenizer/pretokenizers/0/pattern/Regex";
  unsupported("the escape \\w", pattern, "\\w+");
  unsupported("the anchor ^", pattern, "^a");
  unsupported("an intersection", pattern, "[a&&b]");
  unsupported("a class in a class", pattern, "[a[b]]");
  unsupported("a negated set in a class", pattern, "[\\S]");
  unsupported("a - inside a class", pattern, "[a-c-e]");
  unsupported("a category of characters in (?i:...)", pattern, "(?i:\\p{Lu})");
  unsupported("a character beyond ASCII in (?i:...)", pattern, "(?i:\u00e9)");
  unsupported("'ss' in (?i:...)", pattern, "(?i:ss)");
  unsupported("a single byte by \\x", pattern, "\\xff");
  unsupported("the category 'Han'", pattern, "\\p{Han}+");
  unsupported("a special group", pattern, "(?R)|a");
  unsupported("a special group", pattern, "(*COMMIT)a");
  unsupported("a repeated repetition", pattern, "a{2}+");
  unsupported("may match the empty text", pattern, "a*");
  unsupported("bytes, expected 1 to", pattern, std::string(5000, 'a'));
  unsupported("too deep", pattern, std::string(40, '(') + "a" + std::string(40, ')'));
}

TEST_F(Bpe, RejectsHostileFiles) {
  const auto corrupt = [&](const std::string& part, const std::string& pointer, Json value) {
    Json json = golden();
    json[Json::json_pointer(pointer)] = std::move(value);
    expect_rejected(ErrorKind::kCorrupt, part, json);
  };
  corrupt("expected 0 to", "/model/vocab/a", -1);
  corrupt("expected 0 to", "/model/vocab/a", uint64_t{1} << 63);
  corrupt("expected 0 to", "/model/vocab/a", 1 << 24);
  corrupt("expected 0 to 66376", "/model/vocab/a", 66377);  // 2 * 420 + 65536
  corrupt("which another token has", "/model/vocab/a", 5);
  corrupt("model.vocab: an entry is", "/model/vocab/a", 1.5);
  corrupt("model.vocab: an entry is", "/model/vocab/a", "1");
  corrupt("a list inside model.vocab", "/model/vocab/a", Json::array());
  corrupt("missing or empty", "/model/vocab", Json::object());
  corrupt("which is not in model.vocab", "/model/merges/0", Json::array({"a", "qqq"}));
  corrupt("which is not in model.vocab", "/model/merges/0", Json::array({"Z", "Z"}));
  corrupt("has 3 parts", "/model/merges/0", Json::array({"a", "b", "c"}));
  corrupt("has the text 'ab'", "/model/merges/0", "ab");
  corrupt("has the text 'a b c'", "/model/merges/0", "a b c");
  corrupt("model.merges: an entry is 7", "/model/merges/0", 7);
  corrupt("expected 420", "/added_tokens/0/id", 421);
  corrupt("'content' should have", "/added_tokens/0/content", "");
  corrupt("appears twice", "/added_tokens/0/content", "<|pad|>");
  corrupt("'special' should be", "/added_tokens/0/special", 1);
  corrupt("expected 420", "/post_processor/processors/1/special_tokens/<|begin_of_text|>/ids/0", 3);
  corrupt("runs backwards", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "[z-a]");
  corrupt("does not end", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a");
  corrupt("does not end", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a");
  Json json = golden();
  for (int i = 0; i < 1100; ++i) {
    Json token = json["added_tokens"].back();
    token["id"] = token["id"].get<int>() + 1;
    token["content"] = std::string(4000, 'x') + std::to_string(i);
    json["added_tokens"].push_back(token);
  }
  expect_rejected(ErrorKind::kCorrupt, "bytes in total", json);
  json = golden();
  json["model"]["vocab"].erase("Z");
  json["model"]["unk_token"] = "a";
  expect_rejected(ErrorKind::kUnsupported, "with an unk_token", json);
  expect_rejected(ErrorKind::kUnsupported, "a token for the byte 90", json);
}

TEST_F(Bpe, RejectsBrokenJson) {
  const auto corrupt = [&](const std::string& part, const std::string& text) {
    const test::Thrown thrown = test::thrown_by([&] { Tokenizer{save(text)}; });
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr(part));
  };
  corrupt("not JSON", "");
  corrupt("not JSON", "{");
  corrupt("a NUL", std::string("{}\0", 3));
  corrupt("expected an object", "[]");
  corrupt("nested deeper", R"({"model": )" + std::string(100000, '['));
  corrupt("appears twice", R"({"a": 1, "a": 2})");
  corrupt("appears twice", R"({"model": {"vocab": {}, "vocab": {}}})");
  corrupt("appears twice", R"({"model": {"merges": [], "merges": []}})");
  corrupt("an object inside model.merges", R"({"model": {"merges": [{}]}})");
  corrupt("a list inside model.merges", R"({"model": {"merges": [[[]]]}})");
  corrupt("is missing", "{}");
}

TEST_F(Bpe, LimitsTheStepsOfAPattern) {
  Json json = golden();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a+)+b|c";
  const Tokenizer tokenizer(save(json));
  const test::Thrown thrown =
      test::thrown_by([&] { tokenizer.encode(std::string(60, 'a') + "d"); });
  EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
  EXPECT_THAT(thrown.message, HasSubstr("too expensive"));
  EXPECT_NO_THROW(tokenizer.encode("aab c"));
}

// Random changes of the golden file: the result is an Error or a working tokenizer.
TEST_F(Bpe, DamagedFilesCauseErrorsOnly) {
  const std::string whole = read_file(data() / "tokenizer.json", 1 << 20);
  uint64_t state = 1;
  const auto random = [&](size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((state >> 33) % below);
  };
  int rejected = 0;
  for (int round = 0; round < 400; ++round) {
    std::string text = whole;
    for (size_t change = random(3) + 1; change > 0; --change) {
      const size_t at = random(text.size());
      switch (random(4)) {
        case 0:
          text[at] = static_cast<char>(random(256));
          break;
        case 1:
          text.erase(at, random(20));
          break;
        case 2:
          text.insert(at, whole.substr(random(whole.size()), random(40)));
          break;
        default:
          text[at] = "0123456789{}[]\",:"[random(17)];
          break;
      }
    }
    try {
      const Tokenizer tokenizer(save(text));
      const Ids ids = tokenizer.encode("La stazione  123 \xc3\xa8 <|pad|>\n");
      tokenizer.decode(ids);
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), ErrorKind::kInternal) << error.what();
      ++rejected;
    }
  }
  EXPECT_GT(rejected, 100);
}

}  // namespace
}  // namespace xffl::tokenize
