// The files between `xffl prepare` and its job: what one side writes the other reads.
#include "xffl/tokens/prepared.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/json.h"

namespace xffl::tokens {
namespace {

using test::error_of;
using testing::HasSubstr;

Prepared sample() {
  return {.tokenizer_sha256 = std::string(64, 'a'),
          .text_sha256 = std::string(64, 'b'),
          .program = "xffl-tokenize 0.1.0",
          .files = 3,
          .bytes = 4'000'000'000,
          .dropped_tokens = 5,
          .cut_documents = 6,
          .seconds = 7.5,
          .training = {std::string(64, 'c'), 1, 2, 3, 4},
          .validation = PreparedShard{std::string(64, 'd'), 5, 6, 7, 8}};
}

TEST(Prepared, IsReadAsWritten) {
  EXPECT_EQ(parse_prepared(format_prepared(sample()), "x"), sample());
  Prepared without = sample();
  without.validation.reset();
  EXPECT_EQ(parse_prepared(format_prepared(without), "x"), without);
}

TEST(Prepared, AJobIsReadAsWritten) {
  const PrepareJob job{std::string(64, 'a'),
                       {"/a/*.txt", "/b"},
                       "A: {text}",
                       "t",
                       "p",
                       "line",
                       true,
                       false,
                       0.1,
                       64};
  EXPECT_EQ(parse_prepare_job(format_prepare_job(job), "x"), job);
  PrepareJob chats = job;
  chats.format = "chat";
  chats.chat_template = "llama-3";
  chats.messages_field = "turns";
  EXPECT_EQ(parse_prepare_job(format_prepare_job(chats), "x"), chats);
  PrepareJob ids = job;
  ids.format = "bin";
  ids.id_type = "int32";
  ids.end_id = 2;
  EXPECT_EQ(parse_prepare_job(format_prepare_job(ids), "x"), ids);
  const PrepareProgress progress = parse_prepare_progress(format_prepare_progress({1, 2, 3}), "x");
  EXPECT_EQ(progress.bytes_done + 10 * progress.bytes_total + 100 * progress.tokens, 321u);
}

TEST(Prepared, EachOptionOfTheSecondVersionIsReadAsWritten) {
  const PrepareJob plain{
      .tokenizer_sha256 = std::string(64, 'a'), .files = {"/a"}, .sequence_length = 8};
  std::vector<PrepareJob> jobs(5, plain);
  jobs[0].format = "ids";
  jobs[1].chat_template = "llama-3";
  jobs[2].messages_field = "turns";
  jobs[3].id_type = "int32";
  jobs[4].end_id = 2;
  for (const PrepareJob& job : jobs) {
    const std::string text = format_prepare_job(job);
    EXPECT_EQ(parse_prepare_job(text, "x"), job) << text;
  }
}

// An xffl-tokenize that ignored the format would encode something else.
TEST(Prepared, AJobHasTheLowestVersionThatHasItsOptions) {
  PrepareJob job{.tokenizer_sha256 = std::string(64, 'a'), .files = {"/a"}, .sequence_length = 8};
  const auto version = [&] { return Json::parse(format_prepare_job(job)).at("version"); };
  EXPECT_EQ(version(), 1);
  EXPECT_THAT(format_prepare_job(job), testing::Not(HasSubstr("text_format")));
  job.format = "parquet";
  EXPECT_EQ(version(), 2);
  Json newer = Json::parse(format_prepare_job(job));
  newer["version"] = 3;
  EXPECT_THAT(error_of([&] { parse_prepare_job(newer.dump(), "job.json"); }).what(),
              HasSubstr("version"));
  newer["version"] = 2;
  newer.erase("text_format");
  EXPECT_THAT(error_of([&] { parse_prepare_job(newer.dump(), "job.json"); }).what(),
              HasSubstr("text_format"));
}

// A facility's file may hold anything.
TEST(Prepared, WrongValuesAreRefused) {
  const auto refusal = [](const char* pointer, const Json& value) {
    Json json = Json::parse(format_prepared(sample()));
    json[Json::json_pointer(pointer)] = value;
    return std::string(error_of([&] { parse_prepared(json.dump(), "prepared.json"); }).what());
  };
  EXPECT_THAT(refusal("/version", 2), HasSubstr("version"));
  EXPECT_THAT(refusal("/format", "x"), HasSubstr("format"));
  EXPECT_THAT(refusal("/text_sha256", "B"), HasSubstr("text_sha256"));
  EXPECT_THAT(refusal("/training/sha256", "../x"), HasSubstr("sha256"));
  EXPECT_THAT(refusal("/training/tokens", -1), HasSubstr("tokens"));
  EXPECT_THAT(refusal("/validation/bytes", 1e300), HasSubstr("bytes"));
  EXPECT_THAT(refusal("/seconds", -1), HasSubstr("seconds"));
}

TEST(Prepared, KeysOfALaterReleaseAreIgnored) {
  Json json = Json::parse(format_prepared(sample()));
  json["further"] = json["training"]["further"] = 1;
  EXPECT_EQ(parse_prepared(json.dump(), "x"), sample());
  Json job = Json::parse(format_prepare_job({.tokenizer_sha256 = std::string(64, 'a')}));
  job["sequence_length"] = 64;
  const PrepareJob plain = parse_prepare_job(job.dump(), "x");
  job["further"] = {1};
  EXPECT_EQ(parse_prepare_job(job.dump(), "x"), plain);
}

TEST(Prepared, TheTokenizersHashIsOfNamesAndContents) {
  test::TempDir dir;
  EXPECT_THAT(error_of([&] { tokenizer_hash(dir.path()); }).what(),
              HasSubstr("no tokenizer.model and no tokenizer.json"));
  std::ofstream(dir / "tokenizer.json") << "{}";
  const std::string one = tokenizer_hash(dir.path());
  std::ofstream(dir / "tokenizer_config.json") << "{}";
  const std::string two = tokenizer_hash(dir.path());
  EXPECT_NE(one, two);
  std::ofstream(dir / "tokenizer.json") << "[]";
  EXPECT_NE(tokenizer_hash(dir.path()), two);
  std::filesystem::remove(dir / "tokenizer.json");
  std::ofstream(dir / "tokenizer.model") << "a";
  const std::string sentencepiece = tokenizer_hash(dir.path());
  std::ofstream(dir / "tokenizer.model") << "b";
  EXPECT_NE(tokenizer_hash(dir.path()), sentencepiece);
}

}  // namespace
}  // namespace xffl::tokens
