#include "xffl/tokenize/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::vector<fs::path>& corpora() {
  static const fs::path data = fs::path(XFFL_SOURCE_DIR) / "tests/tokenize/data";
  static const std::vector<fs::path> files{data / "it.txt", data / "cs.txt"};
  return files;
}

class Train : public testing::Test {
 protected:
  std::string model_bytes(const TrainOptions& options, const std::string& folder = "m") {
    return read_file(train(corpora(), dir_ / folder, options).model, 1 << 24);
  }
  void expect_error(ErrorKind kind, const std::string& part, const std::function<void()>& body) {
    try {
      body();
      ADD_FAILURE() << "no error; expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }

  test::TempDir dir_;
};

TEST_F(Train, BpeAndUnigramModelsRestoreTheText) {
  for (const ModelType type : {ModelType::kBpe, ModelType::kUnigram}) {
    const TrainedModel trained =
        train(corpora(), dir_ / "m", {.vocab_size = 500, .model_type = type});
    const Tokenizer tokenizer(trained.model);
    EXPECT_EQ(tokenizer.vocab_size(), 500u);
    EXPECT_EQ(trained.vocab_size, 500u);
    EXPECT_EQ(tokenizer.bos_id(), 1);
    EXPECT_EQ(tokenizer.eos_id(), 2);
    for (const std::string text :
         {"La stazione apre alle 6.", "Příliš  žluťoučký\tkůň\n úpěl", "漢字 🙂"}) {
      std::vector<int32_t> ids = tokenizer.encode(text);
      EXPECT_EQ(tokenizer.decode(ids), text);
      EXPECT_THAT(ids, testing::Not(testing::Contains(0))) << "an unknown token in " << text;
      ids.insert(ids.begin(), 1);
      ids.push_back(2);
      EXPECT_EQ(tokenizer.decode(ids), text);
    }
  }
}

TEST_F(Train, WithoutByteFallbackOtherCharactersAreUnknown) {
  const Tokenizer tokenizer(
      train(corpora(), dir_ / "m", {.vocab_size = 300, .byte_fallback = false}).model);
  EXPECT_THAT(tokenizer.encode("漢"), testing::Contains(0));
}

TEST_F(Train, EncodesTrainingWordsInFewTokens) {
  const Tokenizer tokenizer(train(corpora(), dir_ / "m", {.vocab_size = 600}).model);
  EXPECT_LE(tokenizer.encode("stazione").size(), 4u);
  EXPECT_GE(tokenizer.encode("stazione").size(), 1u);
  EXPECT_EQ(tokenizer.encode("1234").size(), 5u) << "a space and one token per digit";
}

TEST_F(Train, WritesTheSameBytesForTheSameInputs) {
  for (const ModelType type : {ModelType::kBpe, ModelType::kUnigram}) {
    const TrainOptions options{.vocab_size = 450, .model_type = type};
    EXPECT_EQ(model_bytes(options, "a"), model_bytes(options, "b"));
  }
}

TEST_F(Train, SamplesALargeTextBySeed) {
  TrainOptions options{.vocab_size = 360, .seed = 1, .sample_bytes = 1500};
  const TrainedModel sampled = train(corpora(), dir_ / "s", options);
  const TrainedModel whole = train(corpora(), dir_ / "w", {.vocab_size = 360});
  EXPECT_EQ(whole.num_lines, 20u);
  EXPECT_LT(sampled.num_lines, whole.num_lines);
  const std::string seed_1 = model_bytes(options);
  EXPECT_EQ(model_bytes(options), seed_1);
  options.seed = 2;
  EXPECT_NE(model_bytes(options), seed_1);
}

TEST_F(Train, AcceptsAFolderOrAModelFileAsOutput) {
  const TrainOptions options{.vocab_size = 400};
  EXPECT_EQ(train(corpora(), dir_ / "new/folder", options).model,
            dir_ / "new/folder/tokenizer.model");
  EXPECT_EQ(train(corpora(), dir_ / "b.model", options).model, dir_ / "b.model");
  const Json config = parse_json(read_file(dir_ / "tokenizer_config.json", 1 << 20), "config");
  EXPECT_EQ(config["tokenizer_class"], "LlamaTokenizer");
  EXPECT_EQ(config["legacy"], true) << "transformers would treat spaces after <s> otherwise";
}

TEST_F(Train, WritesAUnigramModelForHf) {
  train(corpora(), dir_ / "u", {.vocab_size = 400, .model_type = ModelType::kUnigram});
  const Json file = parse_json(read_file(dir_ / "u/tokenizer.json", 1 << 20), "tokenizer.json",
                               {.max_depth = 10});
  EXPECT_EQ(file["model"]["type"], "Unigram");
  EXPECT_EQ(file["model"]["vocab"].size(), 400u);
  EXPECT_EQ(file["model"]["vocab"][1][0], "<s>");
  EXPECT_EQ(file["model"]["byte_fallback"], true);
}

TEST_F(Train, CutsLinesThatAreTooLongForSentencePiece) {
  std::string line;
  while (line.size() < 20000) line += "zampogna ";
  line += std::string(8000, 'q');  // after a space: one byte more than two cuts
  std::ofstream(dir_ / "long.txt") << line;
  const TrainedModel trained = train({dir_ / "long.txt"}, dir_ / "m", {.vocab_size = 280});
  EXPECT_EQ(trained.num_lines, 9u) << "a cut drops no byte";
  EXPECT_LE(Tokenizer(trained.model).encode("zampogna").size(), 3u);
}

TEST_F(Train, CutsLongLinesBetweenCharacters) {
  std::ofstream file(dir_ / "long.txt");
  for (int i = 0; i < 3000; ++i) file << "漢";  // three bytes: a cut at 4000 bytes is inside
  file.close();
  std::vector<fs::path> files = corpora();
  files.push_back(dir_ / "long.txt");
  const Tokenizer tokenizer(train(files, dir_ / "m", {.vocab_size = 500}).model);
  EXPECT_LE(tokenizer.encode("漢").size(), 2u);
  EXPECT_EQ(tokenizer.encode("\ufffd").size(), 4u) << "a space and three bytes: not learned";
}

TEST_F(Train, NamesTheReasonForAnImpossibleVocabulary) {
  expect_error(ErrorKind::kRejected, "set it to a value <=", [&] {
    train(corpora(), dir_ / "m", {.vocab_size = 50000});
  });
  expect_error(ErrorKind::kRejected, "smaller than required_chars",
               [&] { train(corpora(), dir_ / "m", {.vocab_size = 262}); });
  expect_error(ErrorKind::kUsage, "expected 260 to",
               [&] { train(corpora(), dir_ / "m", {.vocab_size = 10}); });
  EXPECT_FALSE(fs::exists(dir_ / "m"));
}

TEST_F(Train, NamesFileAndLineOfBadInput) {
  std::ofstream(dir_ / "bad.txt") << "una riga\n\nun'altra citt\xe0\n";
  expect_error(ErrorKind::kCorrupt, (dir_ / "bad.txt").string() + ":3", [&] {
    train({corpora()[0], dir_ / "bad.txt"}, dir_ / "m", {.vocab_size = 400});
  });
  std::ofstream(dir_ / "empty.txt") << "\n";
  expect_error(ErrorKind::kRejected, "no text",
               [&] { train({dir_ / "empty.txt"}, dir_ / "m", {.vocab_size = 400}); });
}

TEST_F(Train, RejectsOtherFilesThanSentencePieceModels) {
  expect_error(ErrorKind::kNotFound, "absent.model", [&] { Tokenizer{dir_ / "absent.model"}; });
  for (const std::string bad : {"", "not a model", "\x0a\xff\xff\xff\xff\x0f"}) {
    std::ofstream(dir_ / "bad.model", std::ios::binary) << bad;
    expect_error(ErrorKind::kCorrupt, "bad.model", [&] { Tokenizer{dir_ / "bad.model"}; });
  }
}

TEST_F(Train, DecodeRejectsIdsBeyondTheVocabulary) {
  const Tokenizer tokenizer(train(corpora(), dir_ / "m", {.vocab_size = 400}).model);
  for (const int32_t bad : {-1, 400, INT32_MAX}) {
    expect_error(ErrorKind::kRejected, "id " + std::to_string(bad), [&] {
      tokenizer.decode(std::vector<int32_t>{5, bad});
    });
  }
}

}  // namespace
}  // namespace xffl::tokenize
