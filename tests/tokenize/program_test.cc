// The program xffl-tokenize, from its command line to its output files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "support/await.h"
#include "support/on_terminal.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/tokenize/tokenizer.h"
#include "xffl/tokens/prepared.h"
#include "xffl/tokens/token_shard.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Program : public testing::Test {
 protected:
  ProcessResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), XFFL_TOKENIZE_PROGRAM);
    return run_process({.argv = std::move(arguments), .timeout = std::chrono::seconds(60)});
  }
  ProcessResult must(std::vector<std::string> arguments) const {
    ProcessResult result = run(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  void fails(ErrorKind kind, const std::string& part, std::vector<std::string> arguments) const {
    const ProcessResult result = run(std::move(arguments));
    EXPECT_EQ(result.exit_code, exit_code(kind)) << result.err;
    EXPECT_THAT(result.err + result.out, HasSubstr(part));
  }
  std::string at(const std::string& name) const { return dir_ / name; }
  Json inspect(const std::string& name) const {
    return parse_json(must({"inspect", "--json", at(name)}).out, "inspect");
  }

  void write_long_text() const {
    std::ofstream text(at("long.txt"));
    for (int i = 0; i < 30000; ++i) text << "La stazione " << i << " apre alle sei.\n\n";
  }
  // Writes a program in the place of xffl-train that generates `text`.
  void write_trainer(const std::string& text) const {
    std::ofstream trainer(at("trainer"));
    trainer << "#!/bin/sh\ncat > /dev/null\n";
    for (const int32_t id : tokenize::Tokenizer(bpe_).encode(text))
      trainer << "echo '{\"id\": " << id << "}'\n";
    trainer << "echo '{}'\n";
    trainer.close();
    fs::permissions(at("trainer"), fs::perms::owner_all);
  }
  // Writes a job of `xffl prepare` with the tokenizer bpe_ to the folder job1.
  void write_prepare_job(const std::string& pattern) const {
    fs::create_directories(at("job1/out"));
    fs::copy(bpe_, at("job1/tokenizer"));
    tokens::PrepareJob job;
    job.tokenizer_sha256 = tokens::tokenizer_hash(bpe_);
    job.files = {pattern};
    job.text_field = "text";
    job.document = "paragraph";
    job.sequence_length = 64;
    write_file_atomic(at("job1/job.json"), tokens::format_prepare_job(job));
  }

  const std::string it_ = XFFL_SOURCE_DIR "/tests/tokenize/data/it.txt";
  const std::string cs_ = XFFL_SOURCE_DIR "/tests/tokenize/data/cs.txt";
  const std::string bpe_ = XFFL_SOURCE_DIR "/tests/tokenize/data/bpe";
  test::TempDir dir_;
};

TEST_F(Program, TrainsEncodesInspectsAndDecodes) {
  const ProcessResult trained = must({"train", "--input", it_, cs_, "--output", at("model"),
                                      "--vocab-size", "500", "--sample-megabytes", "1"});
  EXPECT_THAT(trained.out, HasSubstr("trained on 20 lines")) << "the texts fit into the sample";
  const std::string model = at("model/tokenizer.model");
  const ProcessResult encoded = must(
      {"encode", "--tokenizer", model, "--input", it_, "--input", cs_, "--output", at("all.tokens"),
       "--validation-output", at("val.tokens"), "--validation-documents", "3", "--sequence-length",
       "16", "--template", "Scrivi un documento: {text}", "--threads", "2"});
  EXPECT_THAT(encoded.out, HasSubstr("16 documents"));
  const Json all = inspect("all.tokens");
  EXPECT_EQ(all["vocab_size"], 500);
  EXPECT_EQ(all["sequence_length"], 16);
  EXPECT_EQ(all["packed"], true);
  EXPECT_EQ(all["num_documents"], 13);
  EXPECT_EQ(inspect("val.tokens")["num_documents"], 3);
  const ProcessResult text =
      must({"decode", "--tokenizer", model, "--input", at("all.tokens"), "--limit", "2"});
  EXPECT_THAT(text.out, testing::StartsWith("Scrivi un documento: "));
  must({"decode", "--tokenizer", model, "--input", at("all.tokens"), "--limit", "2", "--output",
        at("a.txt")});
  EXPECT_EQ(read_file(at("a.txt"), 1 << 20), text.out);
}

TEST_F(Program, TrainsAUnigramModel) {
  must({"train", "--input", it_, cs_, "--output", at("u"), "--vocab-size", "400", "--model-type",
        "unigram"});
  const Json file =
      parse_json(read_file(at("u/tokenizer.json"), 1 << 20), "tokenizer.json", {.max_depth = 10});
  EXPECT_EQ(file["model"]["type"], "Unigram");
}

TEST_F(Program, MasksPromptsWithATokenizerJson) {
  std::ofstream(at("a.jsonl")) << R"({"prompt": "Che ore sono?", "completion": " Le sei."})";
  const ProcessResult encoded = must({"encode", "--tokenizer", bpe_, "--input", at("a.jsonl"),
                                      "--output", at("a.tokens"), "--no-pack", "--prompt-field",
                                      "prompt", "--text-field", "completion", "--mask-prompt"});
  EXPECT_THAT(encoded.out, HasSubstr("with targets"));
  const Json shard = inspect("a.tokens");
  EXPECT_EQ(shard["masked"], true);
  EXPECT_EQ(shard["vocab_size"], 429);
  EXPECT_GT(shard["num_targets"], 1);
  EXPECT_LT(shard["num_targets"], shard["num_tokens"]);
  EXPECT_EQ(
      must({"decode", "--tokenizer", bpe_ + "/tokenizer.json", "--input", at("a.tokens")}).out,
      "Che ore sono? Le sei.\n");
}

TEST_F(Program, ASeedChoosesTheValidationDocuments) {
  std::ofstream ids(at("ids.txt"));
  for (int i = 0; i < 40; ++i) ids << "[" << i << "]\n";
  ids.close();
  const auto chosen = [&](const std::string& seed) {
    must({"encode", "--format", "ids", "--no-pack", "--vocab-size", "40", "--sequence-length", "1",
          "--input", at("ids.txt"), "--output", at("train.tokens"), "--validation-output",
          at("val.tokens"), "--validation-documents", "8", "--seed", seed});
    return read_file(at("val.tokens"), 1 << 20);
  };
  const std::string first = chosen("1");
  EXPECT_EQ(chosen("1"), first);
  EXPECT_NE(chosen("2"), first);
  EXPECT_EQ(inspect("val.tokens")["num_sequences"], 8);
}

TEST_F(Program, EncodesIdsWithoutATokenizer) {
  std::ofstream(at("ids.txt")) << "[1, 2, 3]\n[4]\n";
  must({"encode", "--format", "ids", "--no-pack", "--vocab-size", "10", "--sequence-length", "4",
        "--input", at("ids.txt"), "--output", at("ids.tokens")});
  const Json shard = inspect("ids.tokens");
  EXPECT_EQ(shard["num_sequences"], 2);
  EXPECT_EQ(shard["num_tokens"], 4);
  EXPECT_EQ(shard["num_targets"], 2);
  EXPECT_EQ(shard["packed"], false);
}

TEST_F(Program, DocumentsRowsAndBosAreThoseOfTheFlags) {
  std::ofstream(at("r.bin"), std::ios::binary) << std::string(size_t{2} * 12, '\1');
  must({"encode", "--format", "bin", "--row-ids", "4", "--vocab-size", "300", "--no-pack",
        "--sequence-length", "8", "--documents", "2", "--input", at("r.bin"), "--output",
        at("r.tokens")});
  const Json rows = inspect("r.tokens");  // two of three rows
  EXPECT_EQ(rows["num_sequences"], 2);
  EXPECT_EQ(rows["num_tokens"], 8);
  must({"train", "--input", it_, "--output", at("model"), "--vocab-size", "500"});
  const auto first_document = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> command = {"encode", "--tokenizer", at("model"), "--input",
                                        it_,      "--output",    at("x"),     "--no-pack"};
    command.insert(command.end(), flags.begin(), flags.end());
    must(command);
    const tokens::TokenShardReader shard(at("x"));
    std::vector<int32_t> ids(shard.length(0));
    shard.read(0, ids);
    return ids;
  };
  const std::vector<int32_t> both = first_document({});
  EXPECT_EQ(both.front(), 1);  // <s>
  EXPECT_EQ(both.back(), 2);   // </s>
  EXPECT_EQ(first_document({"--no-bos"}), std::vector(both.begin() + 1, both.end()));
  EXPECT_EQ(first_document({"--no-eos"}), std::vector(both.begin(), both.end() - 1));
}

// The program checks for a signal about once a MiB.
TEST_F(Program, ASignalEndsAnEncodingWithoutAnOutput) {
  write_long_text();
  fs::create_directory(at("out"));
  std::vector<std::string> command = {
      XFFL_TOKENIZE_PROGRAM, "encode", "--tokenizer", bpe_,
      "--threads",           "1",      "--output",    at("out/long.tokens")};
  for (int i = 0; i < 60; ++i) command.insert(command.end(), {"--input", at("long.txt")});
  const pid_t encode = start_detached({.argv = command}, at("log"));
  EXPECT_TRUE(test::await([&] { return !fs::is_empty(at("out")); }));
  ::kill(encode, SIGTERM);
  EXPECT_EQ(wait_for_exit(encode), exit_code(ErrorKind::kCancelled));
  EXPECT_THAT(read_file(at("log"), 1 << 20), HasSubstr("no output was written"));
  EXPECT_TRUE(fs::is_empty(at("out")));
}

// Slurm sends SIGUSR1 before the walltime.
TEST_F(Program, ASignalEndsAPreparationWithoutAShard) {
  write_long_text();
  fs::create_directory(at("texts"));
  for (int i = 0; i < 150; ++i)
    fs::create_symlink(at("long.txt"), at("texts/" + std::to_string(i) + ".txt"));
  write_prepare_job(at("texts/*.txt"));
  const pid_t prepare = start_detached(
      {.argv = {XFFL_TOKENIZE_PROGRAM, "prepare", "--job", at("job1/job.json")}}, at("log"));
  EXPECT_TRUE(test::await([&] { return !fs::is_empty(at("job1/out")); }));
  ::kill(prepare, SIGUSR1);
  EXPECT_EQ(wait_for_exit(prepare), exit_code(ErrorKind::kCancelled));
  EXPECT_THAT(read_file(at("log"), 1 << 20), HasSubstr("no shard was written"));
  EXPECT_FALSE(fs::exists(at("job1/out/train.tokens")));
}

TEST_F(Program, APreparationRefusesADamagedTokenizer) {
  write_prepare_job(it_);
  std::ofstream(at("job1/tokenizer/tokenizer_config.json"), std::ios::app) << "\n";
  fails(ErrorKind::kCorrupt, "it is not the tokenizer that was sent",
        {"prepare", "--job", at("job1/job.json")});
  EXPECT_FALSE(fs::exists(at("train.tokens")));
}

TEST_F(Program, APreparationCountsTheTokensThatItDropsAndTheDocumentsThatItCuts) {
  std::ofstream text(at("text.txt"));
  for (int i = 0; i < 200; ++i) text << "La stazione " << i << " apre alle sei.\n\n";
  text.close();
  write_prepare_job(at("text.txt"));
  const auto prepared = [&](bool pack, int64_t length) {
    tokens::PrepareJob job =
        tokens::parse_prepare_job(read_file(at("job1/job.json"), 1 << 20), "job.json");
    job.pack = pack;
    job.sequence_length = length;
    job.validation_fraction = 0.5;
    write_file_atomic(at("job1/job.json"), tokens::format_prepare_job(job));
    must({"prepare", "--job", at("job1/job.json")});
    return tokens::parse_prepared(read_file(at("prepared.json"), 1 << 20), "prepared.json");
  };
  const auto num_tokens = [](const tokens::Prepared& all) {
    return all.training.tokens + all.validation.value().tokens;
  };
  const tokens::Prepared whole = prepared(false, 1000);
  EXPECT_EQ(whole.cut_documents, 0u);
  EXPECT_EQ(whole.dropped_tokens, 0u);
  EXPECT_EQ(prepared(false, 4).cut_documents, 200u);
  const tokens::Prepared packed = prepared(true, 64);
  EXPECT_EQ(packed.cut_documents, 0u);
  EXPECT_EQ(packed.dropped_tokens, num_tokens(whole) - num_tokens(packed));
}

// As that of a Qwen.
TEST_F(Program, APreparationWithATokenizerWithoutBosIsAnEncodingWithoutBos) {
  write_prepare_job(it_);
  const std::string tokenizer = at("job1/tokenizer");
  Json file = Json::parse(read_file(tokenizer + "/tokenizer.json", 1 << 20));
  file["post_processor"] = nullptr;
  write_file_atomic(tokenizer + "/tokenizer.json", file.dump());
  tokens::PrepareJob job =
      tokens::parse_prepare_job(read_file(at("job1/job.json"), 1 << 20), "job.json");
  job.tokenizer_sha256 = tokens::tokenizer_hash(tokenizer);
  write_file_atomic(at("job1/job.json"), tokens::format_prepare_job(job));
  must({"prepare", "--job", at("job1/job.json")});
  must({"encode", "--no-bos", "--tokenizer", tokenizer, "--sequence-length", "64", "--input", it_,
        "--output", at("encoded.tokens")});
  EXPECT_EQ(read_file(at("train.tokens"), 1 << 24), read_file(at("encoded.tokens"), 1 << 24));
}

// A folder is in the place of the file.
TEST_F(Program, APreparationGoesOnWithoutItsProgressFile) {
  write_prepare_job(it_);
  fs::create_directory(at("job1/out/progress.json"));
  EXPECT_THAT(must({"prepare", "--job", at("job1/job.json")}).err, HasSubstr("progress.json"));
  EXPECT_TRUE(fs::exists(at("train.tokens")));
}

// With its report the job counts as done. A folder is in the place of a file.
TEST_F(Program, APreparationWithoutItsDescriptionHasNoReport) {
  write_prepare_job(it_);
  fs::create_directory(at("prepared.json.tmp"));
  fails(ErrorKind::kIo, "prepared.json", {"prepare", "--job", at("job1/job.json")});
  EXPECT_FALSE(fs::exists(at("job1/out/report.json")));
  fs::remove(at("prepared.json.tmp"));
  must({"prepare", "--job", at("job1/job.json")});
  EXPECT_TRUE(fs::exists(at("job1/out/report.json")));
}

// The trainer writes more than the socket holds.
TEST_F(Program, GenerationDoesNotWaitForATrainerThatPrintsNonsense) {
  std::ofstream(at("trainer")) << "#!/bin/sh\ncat > /dev/null\nexec yes\n";
  fs::permissions(at("trainer"), fs::perms::owner_all);
  fails(ErrorKind::kCorrupt, "xffl-train generate",
        {"generate", "--model", bpe_, "--prompt", "x", "--trainer", at("trainer")});
}

TEST_F(Program, GeneratesWithTheTokenizerOfTheFlag) {
  write_trainer("sei");
  const ProcessResult generated = must({"generate", "--model", at("without"), "--tokenizer", bpe_,
                                        "--prompt", "x", "--trainer", at("trainer")});
  EXPECT_EQ(generated.out, "sei\n");
}

TEST_F(Program, EscapesThatAModelGeneratesDoNotReachATerminal) {
  write_trainer("a\033[2Jb");
  test::OnTerminal terminal({XFFL_TOKENIZE_PROGRAM, "generate", "--model", bpe_, "--prompt", "x",
                             "--trainer", at("trainer")},
                            24, 80, {});
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, testing::StartsWith("a?[2Jb"));
}

TEST_F(Program, ReportsErrorsByExitCodeAndMessage) {
  std::ofstream(at("ids.txt")) << "[1, 2, 3]\n[11]\n";
  fails(ErrorKind::kCorrupt, "ids.txt:2: element 0 is 11",
        {"encode", "--format", "ids", "--vocab-size", "10", "--input", at("ids.txt"), "--output",
         at("x.tokens")});
  fails(ErrorKind::kUsage, "--tokenizer", {"encode", "--input", it_, "--output", at("x.tokens")});
  fails(ErrorKind::kUsage, "--vocab-size",
        {"encode", "--tokenizer", "m", "--vocab-size", "9", "--input", it_, "--output",
         at("x.tokens")});
  fails(ErrorKind::kUsage, "--validation-output",
        {"encode", "--tokenizer", "m", "--input", it_, "--output", at("x.tokens"),
         "--validation-fraction", "0.1"});
  fails(ErrorKind::kNotFound, "absent.model",
        {"encode", "--tokenizer", at("absent.model"), "--input", it_, "--output", at("x.tokens")});
  fails(ErrorKind::kUsage, "subcommand", {});
  fails(ErrorKind::kUsage, "--no-such", {"inspect", "a", "--no-such"});
  fails(ErrorKind::kCorrupt, "not a token shard", {"inspect", it_});
  EXPECT_FALSE(fs::exists(at("x.tokens")));
  EXPECT_EQ(run({"--help"}).exit_code, 0);
  EXPECT_EQ(run({"encode", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace xffl
