#include "xffl/tokenize/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// Assigned member by member: g++ 12 warns falsely when a designated initializer leaves strings to
// their default.
EncodeOptions with_split(const ValidationSplit& split, bool packed = false) {
  EncodeOptions options;
  options.packed = packed;
  options.validation = split;
  return options;
}

EncodeOptions unpacked(const PromptTemplate& prompt) {
  EncodeOptions options;
  options.packed = false;
  options.prompt = prompt;
  return options;
}

const ProgressCallback kNoProgress = [](const Progress&) {};

const fs::path& data() {
  static const fs::path folder = fs::path(XFFL_SOURCE_DIR) / "tests/tokenize/data";
  return folder;
}

class Corpus : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TempDir;
    const TrainedModel model =
        train({data() / "it.txt", data() / "cs.txt"}, folder_->path(), {.vocab_size = 500});
    tokenizer_ = new Tokenizer(model.model);
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete folder_;
  }

  fs::path write(const std::string& name, std::string_view content) const {
    std::ofstream(dir_ / name, std::ios::binary) << content;
    return dir_ / name;
  }
  /// Short documents, all different.
  fs::path many(int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) text += "Il treno " + std::to_string(i) + " parte.\n\n";
    return write("many.txt", text);
  }
  EncodeResult encode(const std::vector<fs::path>& inputs, const EncodeOptions& options,
                      const std::string& output = "out.tokens") const {
    return encode_corpus(*tokenizer_, inputs, dir_ / output, options, kNoProgress);
  }
  std::vector<Ids> sequences(const std::string& name = "out.tokens") const {
    const tokens::TokenShardReader reader(dir_ / name);
    std::vector<Ids> all;
    for (uint64_t i = 0; i < reader.info().num_sequences; ++i) {
      all.emplace_back(reader.length(i));
      reader.read(i, all.back());
    }
    return all;
  }
  std::string decoded(const std::string& name, uint64_t limit = 0) const {
    std::ostringstream out;
    decode_corpus(*tokenizer_, dir_ / name, limit, out);
    return out.str();
  }
  std::string bytes(const std::string& name) const { return read_file(dir_ / name, 1 << 26); }

  template <class Body>
  void expect_error(ErrorKind kind, const std::string& part, Body body) const {
    try {
      body();
      ADD_FAILURE() << "no error; expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr(".tokens"))) << "an output remains";
    }
  }

  static test::TempDir* folder_;
  static Tokenizer* tokenizer_;
  test::TempDir dir_;
};
test::TempDir* Corpus::folder_ = nullptr;
Tokenizer* Corpus::tokenizer_ = nullptr;

Ids joined(const Tokenizer& tokenizer, const std::string& text) {
  Ids ids = tokenizer.encode(text);
  ids.insert(ids.begin(), 1);
  ids.push_back(2);
  return ids;
}

TEST_F(Corpus, WritesEachUnpackedDocumentAsOneSequence) {
  const fs::path file = write("a.txt", "Il treno parte.\n\nPrší.\n");
  const EncodeResult result = encode({file}, {.packed = false});
  EXPECT_THAT(sequences(),
              ElementsAre(joined(*tokenizer_, "Il treno parte."), joined(*tokenizer_, "Prší.")));
  EXPECT_EQ(result.num_documents, 2u);
  EXPECT_EQ(result.num_cut, 0u);
  EXPECT_EQ(result.training.vocab_size, 500u);
  EXPECT_EQ(result.num_tokens, result.training.num_tokens);
}

TEST_F(Corpus, AppliesBosEosAndTemplateOptions) {
  const fs::path file = write("a.txt", "Prší.\n");
  encode({file}, {.bos = false, .eos = false, .packed = false});
  EXPECT_THAT(sequences(), ElementsAre(tokenizer_->encode("Prší.")));
  encode({file}, unpacked(PromptTemplate("Napište dokument: {text}")));
  EXPECT_THAT(sequences(), ElementsAre(joined(*tokenizer_, "Napište dokument: Prší.")));
}

TEST_F(Corpus, PacksDocumentsEndToEnd) {
  const fs::path file = data() / "it.txt";
  encode({file}, {.packed = false}, "unpacked.tokens");
  Ids stream;
  for (const Ids& ids : sequences("unpacked.tokens"))
    stream.insert(stream.end(), ids.begin(), ids.end());
  const EncodeResult result = encode({file}, {.sequence_length = 32});
  EXPECT_EQ(result.num_tokens, stream.size());
  EXPECT_EQ(result.training.num_sequences, stream.size() / 32);
  Ids packed;
  for (const Ids& ids : sequences()) packed.insert(packed.end(), ids.begin(), ids.end());
  stream.resize(stream.size() / 32 * 32);
  EXPECT_EQ(packed, stream);
}

TEST_F(Corpus, CutsLongDocumentsWhenUnpacked) {
  const fs::path file = write("a.txt", "Il treno parte quando il sole dorme.\n\nPrší.\n");
  const Ids whole = joined(*tokenizer_, "Il treno parte quando il sole dorme.");
  const EncodeResult result = encode({file}, {.sequence_length = 8, .packed = false});
  EXPECT_EQ(result.num_cut, 1u);
  Ids pieces;
  for (const Ids& ids : sequences()) {
    EXPECT_LE(ids.size(), 8u);
    if (pieces.size() < whole.size()) pieces.insert(pieces.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(pieces, whole);
}

TEST_F(Corpus, ALimitAgreesWithTheChoiceOfValidationDocuments) {
  const fs::path file = many(40);
  EncodeOptions options = with_split({.output = dir_ / "val.tokens", .num_documents = 5});
  options.documents.limit = 12;
  const EncodeResult result = encode({file}, options);
  EXPECT_EQ(result.training.num_documents, 7u);
  EXPECT_EQ(result.validation->num_documents, 5u);
  std::set<Ids> all;
  for (const std::string name : {"out.tokens", "val.tokens"})
    for (const Ids& ids : sequences(name)) all.insert(ids);
  for (int i = 0; i < 12; ++i)
    EXPECT_TRUE(all.contains(joined(*tokenizer_, "Il treno " + std::to_string(i) + " parte.")));
}

TEST_F(Corpus, TruncationKeepsEosAndPaddingHasNoLoss) {
  const fs::path file = write("a.txt", "Il treno parte quando il sole dorme.\n\nPrší.\n");
  const Ids whole = joined(*tokenizer_, "Il treno parte quando il sole dorme.");
  const Ids brief = joined(*tokenizer_, "Prší.");
  Ids cut(whole.begin(), whole.begin() + 8), padded = brief;
  cut.back() = 2;
  padded.resize(8, 0);
  ASSERT_LT(brief.size(), 8u);
  EncodeOptions options{.sequence_length = 8, .packed = false, .truncate = true};
  EXPECT_EQ(encode({file}, options).num_cut, 1u);
  EXPECT_THAT(sequences(), ElementsAre(cut, brief));
  options.pad_id = 0;
  encode({file}, options);
  EXPECT_THAT(sequences(), ElementsAre(cut, padded));
  const tokens::TokenShardReader reader(dir_ / "out.tokens");
  EXPECT_EQ(reader.num_targets(0), 7u);
  EXPECT_EQ(reader.num_targets(1), brief.size() - 1);
}

TEST_F(Corpus, TruncationDropsDocumentsWhoseTextIsCutOff) {
  const fs::path file =
      write("a.jsonl", R"({"p": "Il treno parte quando il sole dorme.", "text": "Sì."})"
                       "\n"
                       R"({"p": "Il", "text": " treno parte quando il sole dorme."})");
  EncodeOptions options = unpacked(PromptTemplate("{prompt}{text}"));
  options.documents.prompt_field = "p";
  options.mask_prompt = options.truncate = true;
  options.sequence_length = 8;
  const EncodeResult result = encode({file}, options);
  EXPECT_EQ(result.num_cut, 2u);
  EXPECT_EQ(result.num_idle, 1u);
  ASSERT_EQ(result.training.num_sequences, 1u);
  EXPECT_EQ(sequences()[0].back(), 2);
  options.pad_id = 0;
  EXPECT_EQ(encode({file}, options).num_idle, 1u) << "padding keeps the mask of the prompt";
}

TEST_F(Corpus, ChecksTheOptionsOfTruncation) {
  const fs::path file = write("a.txt", "Prší.\n");
  const auto refused = [&](const EncodeOptions& options, const std::string& part) {
    expect_error(ErrorKind::kUsage, part, [&] { encode({file}, options); });
  };
  refused({.packed = true, .truncate = true}, "--no-pack");
  refused({.packed = false, .pad_id = 0}, "--truncate");
  refused({.packed = false, .truncate = true, .pad_id = 500}, "expected an id 0 to 499");
  refused({.packed = false, .truncate = true, .pad_id = -1}, "expected an id 0 to 499");
}

TEST_F(Corpus, WritesTheSameBytesForAnyNumberOfThreads) {
  const fs::path file = many(20000);  // more than one chunk
  const auto run = [&](int threads, const std::string& name) {
    ValidationSplit split{.output = dir_ / (name + ".val"), .fraction = 0.1};
    EncodeOptions options = with_split(split, true);
    options.sequence_length = 64;
    options.num_threads = threads;
    encode({file, data() / "cs.txt"}, options, name);
    return bytes(name) + bytes(name + ".val");
  };
  const std::string alone = run(1, "one.tokens");
  EXPECT_TRUE(run(5, "five.tokens") == alone);
  EXPECT_TRUE(run(0, "all.tokens") == alone);
}

TEST_F(Corpus, WritesTheDocumentThatEndsAChunk) {
  const std::string line = "[1" + std::string(600'000, ' ') + "]\n";  // a chunk has 1 MiB
  const EncodeResult result =
      encode_ids({write("a.ids", line + line + line)}, dir_ / "out.tokens",
                 {.vocab_size = 2, .sequence_length = 1, .num_threads = 1}, kNoProgress);
  EXPECT_EQ(result.training.num_tokens, 3u);
}

std::set<Ids> as_set(const std::vector<Ids>& all) { return {all.begin(), all.end()}; }

TEST_F(Corpus, SplitsBySeedWithoutOverlapOrLoss) {
  const fs::path file = many(2000);
  const auto split = [&](uint64_t seed, const std::string& name) {
    const ValidationSplit validation{
        .output = dir_ / (name + ".val"), .fraction = 0.2, .seed = seed};
    encode({file}, with_split(validation), name);
    const std::set<Ids> training = as_set(sequences(name));
    std::set<Ids> kept = as_set(sequences(name + ".val"));
    EXPECT_EQ(training.size() + kept.size(), 2000u);
    for (const Ids& ids : kept) EXPECT_FALSE(training.contains(ids));
    EXPECT_NEAR(static_cast<double>(kept.size()), 400, 90);  // five standard deviations
    return kept;
  };
  const std::set<Ids> seed_0 = split(0, "a");
  EXPECT_EQ(split(0, "b"), seed_0);
  EXPECT_NE(split(1, "c"), seed_0);
}

TEST_F(Corpus, KeepsCopiesOfADocumentInOneShard) {
  const std::string text = bytes(many(200).filename());
  const fs::path twice = write("twice.txt", text + text);
  const ValidationSplit validation{.output = dir_ / "v.tokens", .num_documents = 17};
  const EncodeResult result = encode({twice}, with_split(validation));
  EXPECT_EQ(result.validation->num_documents, 34u);
  EXPECT_EQ(as_set(sequences("v.tokens")).size(), 17u);
  const std::set<Ids> training = as_set(sequences());
  EXPECT_EQ(training.size(), 183u);
  for (const Ids& ids : sequences("v.tokens")) EXPECT_FALSE(training.contains(ids));
}

TEST_F(Corpus, IdsThatDifferAtTheirEndAreOtherDocuments) {
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "[1, 2, 3, " + std::to_string(i) + "]\n";
  EncodeOptions options = with_split({.output = dir_ / "val.tokens", .num_documents = 5});
  options.vocab_size = 100;
  const EncodeResult result =
      encode_ids({write("a.ids", lines)}, dir_ / "out.tokens", options, kNoProgress);
  EXPECT_EQ(result.validation->num_documents, 5u);
  EXPECT_EQ(result.training.num_documents, 15u);
}

TEST_F(Corpus, WritesNothingForAnImpossibleSplit) {
  const fs::path file = many(10);
  const fs::path out = dir_ / "v.tokens";
  expect_error(ErrorKind::kRejected, "none is left to train on",
               [&] { encode({file}, with_split({.output = out, .num_documents = 10})); });
  expect_error(ErrorKind::kUsage, "fraction",
               [&] { encode({file}, with_split({.output = out, .fraction = 1.0})); });
  expect_error(ErrorKind::kUsage, "fraction",
               [&] { encode({file}, with_split({.output = out, .fraction = 0.0})); });
  expect_error(ErrorKind::kRejected, "validation shard",
               [&] { encode({file}, with_split({.output = out, .fraction = 1e-9})); });
  for (const char* same : {"out.tokens", "./out.tokens"})
    expect_error(ErrorKind::kUsage, "same file",
                 [&] { encode({file}, with_split({.output = dir_ / same})); });
  for (const char* key : {"less than one sequence", "data.sequence_length", "data.pack: false",
                          "data.validation_fraction"})
    expect_error(ErrorKind::kRejected, key, [&] { encode({file}, {.sequence_length = 100000}); });
  for (const std::string same : {"many.txt", "./many.txt"})
    expect_error(ErrorKind::kUsage, "one of the inputs", [&] { encode({file}, {}, same); });
  expect_error(ErrorKind::kUsage, "one of the inputs",
               [&] { encode({file}, with_split({.output = file, .num_documents = 2})); });
}

// The seed decides which shard gets the document without a target.
TEST_F(Corpus, WritesNothingIfAPackedShardHasNoTarget) {
  const fs::path file = write("a.jsonl", R"({"input_ids": [1, 2], "labels": [1, 2]})"
                                         "\n"
                                         R"({"input_ids": [3, 4], "labels": [-100, -100]})"
                                         "\n");
  for (const uint64_t seed : {0u, 2u}) {
    const std::string shard = seed == 0 ? "v.tokens" : "out.tokens";
    EncodeOptions options =
        with_split({.output = dir_ / "v.tokens", .num_documents = 1, .seed = seed}, true);
    options.vocab_size = 100;
    options.sequence_length = 2;
    expect_error(ErrorKind::kRejected, shard + ": none of its 2 tokens",
                 [&] { encode_ids({file}, dir_ / "out.tokens", options, kNoProgress); });
  }
}

TEST_F(Corpus, ReplacesNoneOfSeveralInputs) {
  const std::vector<fs::path> inputs{write("a.txt", "Prší.\n"), write("b.txt", "Una barca.\n")};
  for (const std::string name : {"a.txt", "b.txt"})
    expect_error(ErrorKind::kUsage, "one of the inputs",
                 [&] { encode(inputs, {.packed = false}, name); });
  // A folder of datasets' save_to_disk stands for its files.
  write("state.json", R"({"_data_files": [{"filename": "b.txt"}]})");
  expect_error(ErrorKind::kUsage, "one of the inputs",
               [&] { encode({dir_.path()}, {.packed = false}, "b.txt"); });
  EXPECT_EQ(bytes("a.txt"), "Prší.\n");
  EXPECT_EQ(bytes("b.txt"), "Una barca.\n");
}

TEST_F(Corpus, WritesNothingAfterALateBadLine) {
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += R"({"text": "Il treno parte."})"
            "\n";
  const fs::path file = write("a.jsonl", text + "{}\n");
  expect_error(ErrorKind::kCorrupt, file.string() + ":20001",
               [&] { encode({file}, {.sequence_length = 16}); });
}

TEST_F(Corpus, ReportsProgressAndStopsOnRequest) {
  const fs::path file = many(40000);
  std::vector<Progress> seen;
  encode_corpus(*tokenizer_, {file}, dir_ / "out.tokens", {},
                [&](const Progress& p) { seen.push_back(p); });
  ASSERT_GE(seen.size(), 2u);
  EXPECT_LT(seen[0].documents, seen[1].documents);
  EXPECT_EQ(seen.back().bytes_done, fs::file_size(file));
  EXPECT_EQ(seen.back().bytes_total, fs::file_size(file));
  EXPECT_EQ(seen.back().documents, 40000u);
  fs::remove(dir_ / "out.tokens");
  expect_error(ErrorKind::kCancelled, "enough", [&] {
    encode_corpus(*tokenizer_, {file}, dir_ / "out.tokens", {},
                  [](const Progress&) { throw Error(ErrorKind::kCancelled, "enough"); });
  });
}

TEST_F(Corpus, TheChoiceOfValidationDocumentsIsProgressAndStops) {
  const fs::path file = many(60000);
  const EncodeOptions options = with_split({.output = dir_ / "val.tokens", .num_documents = 5});
  std::vector<Progress> seen;
  encode_corpus(*tokenizer_, {file}, dir_ / "out.tokens", options,
                [&](const Progress& p) { seen.push_back(p); });
  EXPECT_EQ(seen.front().documents, 0u) << "no document is encoded yet";
  EXPECT_GT(seen.front().bytes_done, 0u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end(), [](const Progress& a, const Progress& b) {
    return a.bytes_done < b.bytes_done;
  }));
  for (const Progress& each : seen) EXPECT_EQ(each.bytes_total, 2 * fs::file_size(file));
  EXPECT_EQ(seen.back().bytes_done, 2 * fs::file_size(file));
  for (const char* name : {"out.tokens", "val.tokens"}) fs::remove(dir_ / name);
  expect_error(ErrorKind::kCancelled, "enough", [&] {
    encode_corpus(*tokenizer_, {file}, dir_ / "out.tokens", options, [](const Progress& p) {
      if (p.documents == 0) throw Error(ErrorKind::kCancelled, "enough");
    });
  });
  EXPECT_FALSE(fs::exists(dir_ / "out.tokens"));
}

TEST_F(Corpus, WritesIdsUnchanged) {
  const fs::path file = write("a.jsonl", "[5, 6, 7]\n[8]\r\n [ 0,99 ] \n");
  const EncodeOptions options{.vocab_size = 100, .sequence_length = 3, .packed = false};
  const EncodeResult result = encode_ids({file}, dir_ / "out.tokens", options, kNoProgress);
  EXPECT_EQ(result.training.vocab_size, 100u);
  EXPECT_THAT(sequences(), ElementsAre(Ids{5, 6, 7}, Ids{8}, Ids{0, 99}));
  encode_ids({file}, dir_ / "packed.tokens", {.vocab_size = 100, .sequence_length = 2},
             kNoProgress);
  EXPECT_THAT(sequences("packed.tokens"), ElementsAre(Ids{5, 6}, Ids{7, 8}, Ids{0, 99}));
  EncodeOptions cut = options;
  cut.truncate = true;
  cut.sequence_length = 2;
  encode_ids({file}, dir_ / "cut.tokens", cut, kNoProgress);
  EXPECT_THAT(sequences("cut.tokens"), ElementsAre(Ids{5, 6}, Ids{8}, Ids{0, 99}))
      << "the last id of a line is no EOS";
}

TEST_F(Corpus, NamesFileAndLineOfBadIds) {
  const EncodeOptions options{.vocab_size = 100, .sequence_length = 3, .packed = false};
  for (const std::string bad :
       {"[100]", "[-1]", "[1.0]", "[\"1\"]", "[true]", "[]", "{}", "7", "[1", "[1]]", "[[1]]", "",
        "[1, 2, 3, 4]", "[18446744073709551616]", "[4294967296]", "nul"}) {
    const fs::path file = write("bad.ids", "[1]\n" + bad + "\n[2]\n");
    expect_error(ErrorKind::kCorrupt, file.string() + ":2",
                 [&] { encode_ids({file}, dir_ / "out.tokens", options, kNoProgress); });
  }
  const fs::path good = write("good.ids", "[1]\n"), last = write("last.ids", "[1]\n[100]\n");
  expect_error(ErrorKind::kCorrupt, last.string() + ":2", [&] {
    encode_ids({good, last}, dir_ / "out.tokens", options, kNoProgress);
  });
  for (const char* key :
       {"4 ids, a sequence has at most 3", "data.sequence_length", "data.pack: true"})
    expect_error(ErrorKind::kCorrupt, key, [&] {
      encode_ids({write("long.ids", "[1, 2, 3, 4]\n")}, dir_ / "out.tokens", options, kNoProgress);
    });
  expect_error(ErrorKind::kUsage, "--vocab-size", [&] {
    encode_ids({write("a.ids", "[1]\n")}, dir_ / "out.tokens", {}, kNoProgress);
  });
}

TEST_F(Corpus, DecodesTheDocuments) {
  const std::string text =
      bytes(write("a.txt", "Il treno\nparte.\n\nPrší.\n\nUna barca.\n").filename());
  encode({dir_ / "a.txt"}, {.packed = false});
  EXPECT_EQ(decoded("out.tokens"), text);
  EXPECT_EQ(decoded("out.tokens", 2), "Il treno\nparte.\n\nPrší.\n");
  encode({dir_ / "a.txt"}, {.sequence_length = 1}, "packed.tokens");
  EXPECT_EQ(decoded("packed.tokens"), text);
  EXPECT_EQ(decoded("packed.tokens", 1), "Il treno\nparte.\n");
  write(
      "ids.jsonl", "[1" + [&] {
        std::string ids;
        for (const int32_t id : tokenizer_->encode("Prší.")) ids += ", " + std::to_string(id);
        return ids;
      }() + "]\n");
  EXPECT_EQ(decoded("ids.jsonl"), "Prší.\n");
}

}  // namespace
}  // namespace xffl::tokenize
