// xffl aggregate and xffl inspect, as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "models.h"
#include "support/temp_dir.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/history/store.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::aggregate {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class Command : public testing::Test {
 protected:
  ProcessResult xffl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), XFFL_PROGRAM);
    return run_process({.argv = arguments, .cwd = dir_.path()});
  }
  Json inspect(const std::string& path) {
    const ProcessResult result = xffl({"inspect", "--json", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, path);
  }
  // The hash that the command prints last.
  std::string average(std::vector<std::string> arguments) {
    const std::string out = "out" + std::to_string(count_++);
    arguments.insert(arguments.begin(), {"aggregate", "--out", out});
    const ProcessResult result = xffl(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(" GB/s "));
    const size_t end = result.out.rfind("  " + out);
    return end == std::string::npos || end < 64 ? "" : result.out.substr(end - 64, 64);
  }

  const test::TempDir dir_;
  int count_ = 0;
};

TEST_F(Command, ResultDependsOnWeightsNotOnTheOrderOfFolders) {
  for (uint32_t i = 0; i < 3; ++i)
    write_model(dir_ / std::string(1, static_cast<char>('a' + i)), some_model(i, Dtype::kBF16));
  const std::string hash = average({"a", "b", "c", "--weights", "1,3,2.5"});
  EXPECT_EQ(hash, root_of(dir_ / "out0"));
  EXPECT_EQ(hash, average({"--weights", "2.5,1,3", "c", "a", "b"}));
  EXPECT_EQ(hash, average({"--weights=3,2.5,1", "--threads", "1", "b", "c", "a"}));
  EXPECT_NE(hash, average({"--weights", "3,1,2.5", "a", "b", "c"}));
  EXPECT_EQ(inspect("out0")["parameters_by_dtype"].dump(), R"({"BF16":302400})");
}

// The order of a sum decides whether a small summand is lost: -1 + 1 + 1e-17, -1 + 1e-17 + 1. The
// second element of `other` makes other hashes, so that one `other` precedes `one` in the order.
TEST_F(Command, TheOrderOfEqualModelsWithOtherWeightsDoesNotMatter) {
  write_model(dir_ / "one", {{"w", {{2}, {1, 1}}}});
  for (int i = 0; i < 6; ++i) {
    fs::remove_all(dir_ / "other");
    write_model(dir_ / "other", {{"w", {{2}, {-1, static_cast<float>(i)}}}});
    EXPECT_EQ(average({"--dtype", "fp32", "--weights", "1,1,1e-17", "other", "one", "one"}),
              average({"--dtype", "fp32", "--weights", "1,1e-17,1", "other", "one", "one"}))
        << i;
  }
}

// The models differ outside the samples that the command reads of a file of more than 2 MiB.
TEST_F(Command, TheOrderOfLargeModelsWithEqualSamplesDoesNotMatter) {
  const std::map<std::string, float> models = {{"a", -1.0f}, {"b", 1.0f}, {"c", 1e-17f}};
  for (const auto& [name, value] : models) {
    std::vector<float> values(800'000);
    values[20'000] = value;
    write_model(dir_ / name, {{"w", {{800'000}, values}}});
  }
  EXPECT_EQ(average({"a", "b", "c"}), average({"a", "c", "b"}));
}

TEST_F(Command, AcceptsAFolderTwiceAndADtype) {
  write_model(dir_ / "a", {{"w", {{2}, {1, 3}}}});
  write_model(dir_ / "b", {{"w", {{2}, {4, 0}}}});
  EXPECT_EQ(average({"--dtype", "fp16", "a", "b", "a"}),
            average({"--dtype", "fp16", "b", "a", "a"}));
  EXPECT_THAT(read_tensor(dir_ / "out0", "w"), testing::ElementsAre(2, 2));
  EXPECT_EQ(checkpoint::ModelFolder(dir_ / "out0").spec("w").dtype, Dtype::kF16);
  average({"out0", "out1"});
  EXPECT_EQ(checkpoint::ModelFolder(dir_ / "out2").spec("w").dtype, Dtype::kF16) << "as the inputs";
  average({"--dtype", "fp32", "out0", "out1"});
  EXPECT_EQ(checkpoint::ModelFolder(dir_ / "out3").spec("w").dtype, Dtype::kF32);
  average({"--dtype", "bf16", "a", "b"});
  EXPECT_EQ(checkpoint::ModelFolder(dir_ / "out4").spec("w").dtype, Dtype::kBF16);
}

TEST_F(Command, WrongWeightsAreAUsageError) {
  write_model(dir_ / "a", {{"w", {{1}, {1}}}});
  for (const char* weights : {"1,2", "x", "1/4", "1,", "-1", "0", "nan", ""}) {
    const ProcessResult result =
        xffl({"aggregate", "--out", "out", std::string("--weights=") + weights, "a"});
    if (*weights == '\0') continue;  // as if it were not given
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kUsage)) << weights;
    EXPECT_THAT(result.err, HasSubstr("weights"));
    EXPECT_FALSE(fs::exists(dir_ / "out"));
  }
}

TEST_F(Command, NamesTheFolderOfAMismatch) {
  write_model(dir_ / "a", {{"w", {{1}, {1}}}});
  write_model(dir_ / "b", {{"w", {{2}, {1, 2}}}});
  const ProcessResult result = xffl({"aggregate", "--out", "out", "a", "b"});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kRejected));
  for (const char* part : {"b", "[2]", "[1]"}) EXPECT_THAT(result.err, HasSubstr(part));
}

TEST_F(Command, InspectsAModelAndChecksItsManifest) {
  write_model(dir_ / "a", some_model(1));
  EXPECT_EQ(inspect("a")["manifest"], "none");
  const std::string root = checkpoint::write_manifest(dir_ / "a").root_sha256();
  const Json model = inspect("a");
  EXPECT_EQ(model["kind"], "model folder");
  EXPECT_EQ(model["num_parameters"], 302'400);
  EXPECT_EQ(model["manifest"], "verified");
  EXPECT_EQ(model["sha256"], root);
  EXPECT_THAT(xffl({"inspect", "a", "--tensors"}).out, HasSubstr("[1000,300]"));

  std::ofstream(dir_ / "a" / "tokenizer.json") << R"({"version": "2.0"})";
  const ProcessResult damaged = xffl({"inspect", "a"});
  EXPECT_EQ(damaged.exit_code, exit_code(ErrorKind::kRejected));
  EXPECT_THAT(damaged.out, HasSubstr("not verified"));
  EXPECT_THAT(damaged.err, HasSubstr("tokenizer.json"));
  const ProcessResult json = xffl({"inspect", "--json", "a"});
  EXPECT_EQ(json.exit_code, exit_code(ErrorKind::kRejected));
  EXPECT_EQ(parse_json(json.out, "a")["manifest"], "not verified");
}

TEST_F(Command, InspectsAJournal) {
  history::Store::open(dir_ / "journal.db")
      ->append({.kind = "job_submitted",
                .round = 2,
                .facility = "alba",
                .attempt = 1,
                .payload = R"({"text": "\u001b[2Jgone"})"});
  const ProcessResult table = xffl({"inspect", "."});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* part : {"chain: verified", "job_submitted", "alba"})
    EXPECT_THAT(table.out, HasSubstr(part));
  EXPECT_THAT(table.out, Not(HasSubstr("\x1b")));
  const Json event = parse_json(xffl({"inspect", "--json", "journal.db"}).out, "event");
  EXPECT_EQ(event["seq"], 1);
  EXPECT_EQ(event["payload"]["text"], "\x1b[2Jgone");
}

TEST_F(Command, InspectsATokenShardAndRejectsAnUnknownFile) {
  tokens::TokenShardWriter writer(dir_ / "it.tokens", 100, 4, true);
  writer.add_document(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8});
  writer.finish();
  EXPECT_EQ(inspect("it.tokens")["num_sequences"], 2);
  std::ofstream(dir_ / "notes.txt") << "x";
  EXPECT_EQ(xffl({"inspect", "notes.txt"}).exit_code, exit_code(ErrorKind::kUsage));
  EXPECT_EQ(xffl({"inspect", "nothing"}).exit_code, exit_code(ErrorKind::kNotFound));
}

}  // namespace
}  // namespace xffl::aggregate
