// The targets of the loss in encoded documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/tokenize/corpus.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const ProgressCallback kNoProgress = [](const Progress&) {};
const fs::path kData = fs::path(XFFL_SOURCE_DIR) / "tests/tokenize/data";

struct Masked {
  Ids ids;
  Ids targets;  // the ids that the loss counts
};

class Masking : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TempDir;
    train({kData / "it.txt", kData / "cs.txt"}, folder_->path(), {.vocab_size = 500});
    tokenizers_ = new std::vector<Tokenizer>;
    tokenizers_->emplace_back(folder_->path());  // SentencePiece
    tokenizers_->emplace_back(kData / "bpe");
  }
  static void TearDownTestSuite() {
    delete tokenizers_;
    delete folder_;
  }

  fs::path write(const std::string& name, std::string_view content) const {
    std::ofstream(dir_ / name, std::ios::binary) << content;
    return dir_ / name;
  }
  static EncodeOptions options(const std::string& pattern, bool mask) {
    EncodeOptions result;
    result.prompt = PromptTemplate(pattern);
    result.mask_prompt = mask;
    result.packed = false;
    return result;
  }
  EncodeResult encode(const Tokenizer& tokenizer, const fs::path& input,
                      const EncodeOptions& with) const {
    return encode_corpus(tokenizer, {input}, dir_ / "out.tokens", with, kNoProgress);
  }
  std::vector<Masked> sequences() const {
    const tokens::TokenShardReader reader(dir_ / "out.tokens");
    std::vector<Masked> all;
    for (uint64_t i = 0; i < reader.info().num_sequences; ++i) {
      Masked& masked = all.emplace_back();
      masked.ids.resize(reader.length(i));
      reader.read(i, masked.ids);
      std::vector<uint8_t> targets(masked.ids.size());
      reader.read_targets(i, targets);
      for (size_t t = 0; t < targets.size(); ++t) {
        if (targets[t] != 0) masked.targets.push_back(masked.ids[t]);
      }
    }
    return all;
  }

  static test::TempDir* folder_;
  static std::vector<Tokenizer>* tokenizers_;
  test::TempDir dir_;
};
test::TempDir* Masking::folder_ = nullptr;
std::vector<Tokenizer>* Masking::tokenizers_ = nullptr;

TEST_F(Masking, TargetsAreTheTextAndEos) {
  const fs::path file = write("a.txt", "La stazione apre.\n\n\xe6\xbc\xa2\xe5\xad\x97 Prší!\n");
  for (const Tokenizer& tokenizer : *tokenizers_) {
    for (const std::string pattern :
         {"Scrivi un documento:{text}", "Scrivi:\n{text}", "(č){text} fine"}) {
      const std::string end = pattern.ends_with("fine") ? " fine" : "";
      encode(tokenizer, file, options(pattern, false));
      const std::vector<Masked> whole = sequences();
      EXPECT_EQ(whole[0].targets, whole[0].ids) << "all ids are targets without a mask";
      encode(tokenizer, file, options(pattern, true));
      const std::vector<Masked> masked = sequences();
      ASSERT_EQ(masked.size(), 2u);
      EXPECT_EQ(masked[0].ids, whole[0].ids) << "a mask changes no id";
      EXPECT_EQ(masked[1].ids, whole[1].ids);
      EXPECT_EQ(tokenizer.decode(masked[0].targets), "La stazione apre." + end) << pattern;
      EXPECT_EQ(tokenizer.decode(masked[1].targets), "\xe6\xbc\xa2\xe5\xad\x97 Prší!" + end)
          << pattern;
      EXPECT_EQ(masked[0].targets.back(), tokenizer.eos_id());
      EXPECT_EQ(masked[0].ids.front(), tokenizer.bos_id());
    }
  }
}

// Every place of a sentence is the prompt's end once; some of the places are within a token.
TEST_F(Masking, ATokenAcrossTheEndOfThePromptIsATarget) {
  const std::string sentence = "Il treno della stazione";
  for (const Tokenizer& tokenizer : *tokenizers_) {
    int across = 0;
    for (size_t cut = 1; cut < sentence.size(); ++cut) {
      encode(tokenizer, write("a.txt", sentence.substr(cut) + "\n"),
             options(sentence.substr(0, cut) + "{text}", true));
      Ids targets;
      for (const TokenSpan& token : tokenizer.encode_spans(sentence)) {
        if (token.end > cut) targets.push_back(token.id);
        across += token.begin < cut && token.end > cut;
      }
      targets.push_back(tokenizer.eos_id());
      EXPECT_EQ(sequences()[0].targets, targets) << cut;
    }
    EXPECT_GT(across, 0);
  }
}

TEST_F(Masking, EqualAnswersToOtherPromptsAreOtherDocuments) {
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += R"({"q": "Domanda )" + std::to_string(i) + R"(?", "a": " Boh."})" + "\n";
  EncodeOptions with = options("{prompt}{text}", true);
  with.documents.text_field = "a";
  with.documents.prompt_field = "q";
  ValidationSplit split;
  split.output = dir_ / "validation.tokens";
  split.fraction = 0.5;
  with.validation = split;
  const EncodeResult result = encode((*tokenizers_)[0], write("a.jsonl", lines), with);
  // By their answers alone all would be in one shard. 30 and six standard deviations.
  EXPECT_NEAR(static_cast<double>(result.validation->num_documents), 30, 24);
}

TEST_F(Masking, ReadsPromptsFromAField) {
  const fs::path file = write("a.jsonl", R"({"q": "Che ore sono?", "a": " Le sei."})"
                                         "\n"
                                         R"({"q": "", "a": " Boh."})"
                                         "\n"
                                         R"({"q": "Muta?", "a": " "})"
                                         "\n");
  for (const Tokenizer& tokenizer : *tokenizers_) {
    EncodeOptions with = options("D: {prompt} R:{text}", true);
    with.documents.text_field = "a";
    with.documents.prompt_field = "q";
    const EncodeResult result = encode(tokenizer, file, with);
    EXPECT_EQ(result.num_documents, 2u) << "an empty answer is skipped";
    EXPECT_TRUE(result.training.has_targets);
    EXPECT_EQ(tokenizer.decode(sequences()[0].ids), "D: Che ore sono? R: Le sei.");
    EXPECT_THAT(tokenizer.decode(sequences()[0].targets), testing::AnyOf("Le sei.", " Le sei."));
    EXPECT_EQ(tokenizer.decode(sequences()[1].ids), "D:  R: Boh.");
  }
}

TEST_F(Masking, DropsPiecesWithoutTargets) {
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "stazione ";
  const fs::path file = write("a.txt", "treno\n");
  EncodeOptions with = options(prompt + "{text}", true);
  with.sequence_length = 16;
  const EncodeResult result = encode((*tokenizers_)[1], file, with);
  EXPECT_EQ(result.num_cut, 1u);
  EXPECT_GT(result.num_idle, 2u);
  EXPECT_EQ(result.num_tokens, result.training.num_tokens);
  const tokens::TokenShardReader reader(dir_ / "out.tokens");
  for (uint64_t i = 0; i < reader.info().num_sequences; ++i) EXPECT_GT(reader.num_targets(i), 0u);
}

TEST_F(Masking, PackedDocumentsKeepTargetsAndBegins) {
  const fs::path file = write("a.txt", "treno\n\nbarca\n\nstazione\n");
  const Tokenizer& tokenizer = (*tokenizers_)[1];
  encode(tokenizer, file, options("Scrivi:{text}", true));
  const std::vector<Masked> apart = sequences();
  EncodeOptions with = options("Scrivi:{text}", true);
  with.packed = true;
  with.sequence_length = apart[0].ids.size() + 2;
  encode(tokenizer, file, with);
  Ids targets;
  for (const Masked& masked : sequences()) {
    targets.insert(targets.end(), masked.targets.begin(), masked.targets.end());
  }
  Ids expected;
  for (const Masked& masked : apart) {
    expected.insert(expected.end(), masked.targets.begin(), masked.targets.end());
  }
  ASSERT_LE(targets.size(), expected.size());
  expected.resize(targets.size());  // the incomplete sequence is dropped
  EXPECT_EQ(targets, expected);
  EXPECT_EQ(tokens::TokenShardReader(dir_ / "out.tokens").document_starts(0),
            (std::vector<uint32_t>{0, static_cast<uint32_t>(apart[0].ids.size())}));
}

TEST_F(Masking, ReadsLabelsOfIds) {
  EncodeOptions with;
  with.vocab_size = 100;
  with.sequence_length = 8;
  with.packed = false;
  const auto encode_lines = [&](const std::string& lines) {
    return encode_ids({write("a.jsonl", lines)}, dir_ / "out.tokens", with, kNoProgress);
  };
  const EncodeResult result = encode_lines(
      R"({"input_ids": [5, 6, 7, 0], "labels": [-100, -100, 7, 0], "attention_mask": [1, 1, 1, 1]})"
      "\n"
      R"({"labels": [-100, -100], "input_ids": [8, 9]})"
      "\n"
      R"({"labels": [8, -100], "input_ids": [8, 9]})"
      "\n"
      R"({"labels": [-100, 9], "input_ids": [8, 9]})"
      "\n");
  EXPECT_EQ(result.num_idle, 2u) << "no token predicts the first one";
  ASSERT_EQ(sequences().size(), 2u);
  EXPECT_EQ(sequences()[0].ids, (Ids{5, 6, 7, 0}));
  EXPECT_EQ(sequences()[0].targets, (Ids{7, 0}));
  EXPECT_EQ(sequences()[1].targets, (Ids{9}));
  fs::remove(dir_ / "out.tokens");
  for (const std::string bad :
       {R"({"input_ids": [5, 6], "labels": [-100]})", R"({"input_ids": [5], "labels": [6]})",
        R"({"input_ids": [5], "labels": ["5"]})", R"({"input_ids": [5]})", R"({"input_ids"})",
        R"({"input_ids": [100], "labels": [100]})", R"({"input_ids": [], "labels": []})",
        R"({"input_ids": [5, 6], "labels": [5, 6], "attention_mask": [1, 0]})",
        R"({"input_ids": [5], "labels": [5], "text": "x"})"}) {
    const test::Thrown thrown = test::thrown_by([&] { encode_lines(bad + "\n"); });
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << bad << ": " << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr("a.jsonl:1"));
    EXPECT_FALSE(fs::exists(dir_ / "out.tokens"));
  }
  const std::string labelled = R"({"input_ids": [5], "labels": [5]})";
  for (const std::string& mixed : {labelled + "\n[5]\n", "[5]\n" + labelled + "\n"}) {
    const test::Thrown thrown = test::thrown_by([&] { encode_lines(mixed); });
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << mixed << ": " << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr("a.jsonl:2"));
  }
  encode_lines("[5, 6]\n");
  EXPECT_EQ(sequences()[0].targets, (Ids{5, 6})) << "without labels all ids are targets";
  fs::remove(dir_ / "out.tokens");
  with.with_labels = true;
  EXPECT_THAT(test::message_of(ErrorKind::kCorrupt, [&] { encode_lines("[5]\n"); }),
              HasSubstr("a.jsonl:1"));
}

TEST_F(Masking, RejectsContradictingOptions) {
  const fs::path text = write("a.txt", "treno\n"), json = write("a.jsonl", R"({"text": "b"})"
                                                                           "\n");
  const auto rejected = [&](ErrorKind kind, const std::string& part, const fs::path& input,
                            const EncodeOptions& with) {
    const test::Thrown thrown = test::thrown_by([&] { encode((*tokenizers_)[0], input, with); });
    EXPECT_EQ(thrown.kind, kind) << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr(part));
    EXPECT_FALSE(fs::exists(dir_ / "out.tokens"));
  };
  rejected(ErrorKind::kUsage, "nothing to mask", text, options("{text}", true));
  rejected(ErrorKind::kUsage, "--prompt-field", json, options("{prompt}{text}", true));
  EncodeOptions with = options("{prompt}{text}", true);
  with.documents.prompt_field = "prompt";
  rejected(ErrorKind::kUsage, "needs JSONL", text, with);
  rejected(ErrorKind::kCorrupt, "no field \"prompt\"", json, with);
  with.prompt = PromptTemplate("x{text}");
  rejected(ErrorKind::kUsage, "has no {prompt}", json, with);
  with = options("{text}", false);
  with.with_labels = true;
  rejected(ErrorKind::kUsage, "--labels needs --format ids", json, with);
  const test::Thrown ids = test::thrown_by([&] {
    EncodeOptions id_options = options("x{text}", true);
    id_options.vocab_size = 10;
    encode_ids({write("i.ids", "[1]\n")}, dir_ / "out.tokens", id_options, kNoProgress);
  });
  EXPECT_THAT(ids.message, HasSubstr("needs text"));
}

}  // namespace
}  // namespace xffl::tokenize
